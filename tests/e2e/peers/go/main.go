// go-nsq, unmodified: publishes what stdin says, consumes it, and tells on stdout what came. See test_clients.py.
package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"log"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/nsqio/go-nsq"
)

type plan struct {
	Host, Topic  string
	Port         int
	Lookupds     []string // instead of host and port
	Pub, Dpub    []string
	Mpub         [][]string
	Expected     []string
	DelayMs      int     `json:"delay_ms"`
	TouchAfter   float64 `json:"touch_after"` // seconds
	FinishAfter  float64 `json:"finish_after"`
	MostAttempts uint16  `json:"most_attempts"`
	Compression  []string
	Authority    string
	Secret       string
}

// An arrival is a body, its attempts, and the seconds since the start.
type arrival [3]interface{}

type consumption struct {
	plan    plan
	began   time.Time
	lock    sync.Mutex
	arrived []arrival
	left    map[string]bool
	done    chan struct{}
}

func main() {
	var what plan
	check(json.NewDecoder(os.Stdin).Decode(&what))
	it := &consumption{plan: what, began: time.Now(), arrived: []arrival{}, left: map[string]bool{}, done: make(chan struct{})}
	for _, body := range what.Expected {
		it.left[body] = true
	}
	config := configured(what)
	consumer, err := nsq.NewConsumer(what.Topic, "channel", config)
	check(err)
	consumer.AddConcurrentHandlers(it, 200)
	if len(what.Lookupds) > 0 {
		check(consumer.ConnectToNSQLookupds(what.Lookupds))
	} else {
		address := fmt.Sprintf("%s:%d", what.Host, what.Port)
		check(consumer.ConnectToNSQD(address))
		publish(what, address, config)
	}
	<-it.done
	consumer.Stop() // what has been answered is sent before it has stopped
	<-consumer.StopChan
	check(json.NewEncoder(os.Stdout).Encode(it.arrived))
}

func configured(what plan) *nsq.Config {
	config := nsq.NewConfig()
	config.MaxInFlight = 200
	config.MaxAttempts = 0 // without a limit of its own
	config.DefaultRequeueDelay = 100 * time.Millisecond
	config.BackoffMultiplier = 20 * time.Millisecond
	config.LookupdPollInterval = time.Second
	config.AuthSecret = what.Secret
	for _, option := range what.Compression {
		check(config.Set(option, true))
	}
	if what.Authority != "" {
		check(config.Set("tls_v1", true))
		check(config.Set("tls_root_ca_file", what.Authority))
	}
	check(config.Validate())
	return config
}

func publish(what plan, address string, config *nsq.Config) {
	producer, err := nsq.NewProducer(address, config)
	check(err)
	defer producer.Stop()
	answers := make(chan *nsq.ProducerTransaction, len(what.Pub))
	for _, body := range what.Pub {
		check(producer.PublishAsync(what.Topic, []byte(body), answers))
	}
	for range what.Pub {
		check((<-answers).Error)
	}
	for _, bodies := range what.Mpub {
		batch := [][]byte{}
		for _, body := range bodies {
			batch = append(batch, []byte(body))
		}
		check(producer.MultiPublish(what.Topic, batch))
	}
	for _, body := range what.Dpub {
		check(producer.DeferredPublish(what.Topic, time.Duration(what.DelayMs)*time.Millisecond, []byte(body)))
	}
}

// HandleMessage finishes a message by returning nil, and requeues it and backs off by returning an error.
func (it *consumption) HandleMessage(message *nsq.Message) error {
	body := string(message.Body)
	it.note(body, message.Attempts)
	switch {
	case strings.HasPrefix(body, "requeue") && message.Attempts == 1:
		message.RequeueWithoutBackoff(100 * time.Millisecond)
		return nil
	case strings.HasPrefix(body, "backoff") && message.Attempts <= 2:
		return errors.New("fails twice")
	case strings.HasPrefix(body, "fails"):
		message.RequeueWithoutBackoff(0)
		if message.Attempts < it.plan.MostAttempts {
			return nil
		}
	case strings.HasPrefix(body, "touch"):
		time.Sleep(seconds(it.plan.TouchAfter))
		message.Touch()
		time.Sleep(seconds(it.plan.FinishAfter - it.plan.TouchAfter))
	}
	it.isDoneWith(body)
	return nil
}

func (it *consumption) note(body string, attempts uint16) {
	it.lock.Lock()
	defer it.lock.Unlock()
	it.arrived = append(it.arrived, arrival{body, attempts, time.Since(it.began).Seconds()})
}

func (it *consumption) isDoneWith(body string) {
	it.lock.Lock()
	defer it.lock.Unlock()
	if it.left[body] {
		delete(it.left, body)
		if len(it.left) == 0 {
			close(it.done)
		}
	}
}

func seconds(number float64) time.Duration {
	return time.Duration(number * float64(time.Second))
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
