module peer

go 1.11

require github.com/nsqio/go-nsq v1.1.0
