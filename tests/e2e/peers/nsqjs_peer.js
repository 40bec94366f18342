// nsqjs, unmodified: publishes what stdin says, consumes it, and tells on stdout what came. See test_clients.py.
'use strict'

const { readFileSync } = require('fs')
const nsq = require('nsqjs')

const plan = JSON.parse(readFileSync(0, 'utf8'))
const arrived = []
const left = new Set(plan.expected)
const began = performance.now()

const fail = (error) => {
  console.error(error)
  process.exit(1)
}

const how = plan.secret ? { authSecret: plan.secret } : {}
for (const it of plan.compression || []) how[it] = true
if (plan.authority) Object.assign(how, { tls: true, ca: readFileSync(plan.authority) })

const reader = new nsq.Reader(plan.topic, 'channel', {
  nsqdTCPAddresses: `${plan.host}:${plan.port}`,
  maxInFlight: 200,
  ...how
})
const writer = new nsq.Writer(plan.host, plan.port, how)
reader.on('error', fail)
writer.on('error', fail)

const finish = (message) => {
  message.finish()
  isDoneWith(message.body.toString())
}

const isDoneWith = (body) => {
  left.delete(body)
  if (left.size === 0) endOnceAllIsAnswered()
}

// Compressed answers leave the process some time after they are given, so only nsqd can say that it has all of them.
const endOnceAllIsAnswered = async () => {
  const [{ channels: [channel] }] = (await (await fetch(plan.stats)).json()).topics
  if (channel.in_flight_count === 0) end()
  else setTimeout(endOnceAllIsAnswered, 20)
}

const end = () => {
  reader.close()
  writer.close()
  process.stdout.write(JSON.stringify(arrived), () => process.exit(0))
}

reader.on('message', (message) => {
  const body = message.body.toString()
  arrived.push([body, message.attempts, (performance.now() - began) / 1000])
  if (body.startsWith('requeue') && message.attempts === 1) {
    message.requeue(100, false)
  } else if (body.startsWith('fails')) {
    message.requeue(0, false)
    if (message.attempts === plan.most_attempts) isDoneWith(body)
  } else if (body.startsWith('touch')) {
    setTimeout(() => message.touch(), plan.touch_after * 1000)
    setTimeout(() => finish(message), plan.finish_after * 1000)
  } else {
    finish(message)
  }
})

const check = (error) => error && fail(error)

writer.on('ready', () => {
  for (const body of plan.pub) writer.publish(plan.topic, body, check)
  for (const bodies of plan.mpub) writer.publish(plan.topic, bodies, check)
  for (const body of plan.dpub) writer.deferPublish(plan.topic, [body], plan.delay_ms, check)
})

reader.connect()
writer.connect()
