// go-nsq, unmodified: a producer or a consumer that goes on until it is killed. It takes the arguments of
// tests/failover/peers.py, and writes what that writes. go-nsq has producers for fixed addresses only.
package main

import (
	"fmt"
	"log"
	"os"
	"strconv"
	"time"

	"github.com/nsqio/go-nsq"
)

const topic = "orders"

func main() {
	name, where, address := os.Args[1], os.Args[2], os.Args[3]
	config := nsq.NewConfig()
	config.MaxInFlight = 20
	config.LookupdPollInterval = time.Second // also how often a consumer tries to reach a fixed address again
	if name == "go-nsq producer" {
		first, err := strconv.Atoi(os.Args[4])
		check(err)
		publish(address, config, first)
	}
	consume(where, address, config)
}

func publish(address string, config *nsq.Config, first int) {
	producer, err := nsq.NewProducer(address, config)
	check(err)
	producer.SetLogger(nil, nsq.LogLevelError)
	for number := first; ; number++ {
		// An error doesn't say whether it is stored, so the next number is due either way.
		if producer.Publish(topic, []byte(strconv.Itoa(number))) == nil {
			fmt.Println(number)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

func consume(where string, address string, config *nsq.Config) {
	consumer, err := nsq.NewConsumer(topic, "go-nsq", config)
	check(err)
	consumer.SetLogger(nil, nsq.LogLevelError)
	consumer.AddHandler(nsq.HandlerFunc(func(message *nsq.Message) error {
		fmt.Println(string(message.Body))
		return nil
	}))
	if where == "lookupd" {
		check(consumer.ConnectToNSQLookupd(address))
	} else {
		check(consumer.ConnectToNSQD(address))
	}
	select {}
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
