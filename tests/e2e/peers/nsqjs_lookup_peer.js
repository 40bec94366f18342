// nsqjs, unmodified: consumes from whatever nsqd nsqlookupd names, until it has all bodies. See test_cluster.py.
'use strict'

const { readFileSync } = require('fs')
const nsq = require('nsqjs')

const plan = JSON.parse(readFileSync(0, 'utf8'))
const arrived = []
const left = new Set(plan.expected)

const reader = new nsq.Reader(plan.topic, 'channel', {
  lookupdHTTPAddresses: plan.lookupds,
  lookupdPollInterval: 1,
  maxInFlight: 20
})

reader.on('error', (error) => {
  console.error(error)
  process.exit(1)
})

reader.on('message', (message) => {
  const body = message.body.toString()
  arrived.push(body)
  left.delete(body)
  message.finish()
  if (left.size > 0) return
  // The last FIN is still to be sent.
  setTimeout(() => {
    reader.close()
    process.stdout.write(JSON.stringify(arrived), () => process.exit(0))
  }, 100)
})

reader.connect()
