// What test_amqplib.py runs: node amqplib_scenarios.cjs URL SCENARIO PREFIX
// One scenario is one exported behaviour of RabbitMQ as amqplib's users meet it. A scenario that fails throws.
'use strict';

const assert = require('node:assert/strict');
const amqp = require('amqplib');

const [url, scenario, prefix] = process.argv.slice(2);
const name = (what) => `${prefix}.${what}`;
const WAIT_MS = 10000;

/** The first event of this name, or a failure. */
function once(emitter, event) {
  return new Promise((resolve, reject) => {
    const timer = setTimeout(() => reject(new Error(`no ${event} within ${WAIT_MS} ms`)), WAIT_MS);
    emitter.once(event, (...values) => {
      clearTimeout(timer);
      resolve(values.length > 1 ? values : values[0]);
    });
  });
}

/** The next message of a queue, waited for. */
async function get(channel, queue, options = { noAck: true }) {
  const deadline = Date.now() + WAIT_MS;
  while (Date.now() < deadline) {
    const message = await channel.get(queue, options);
    if (message) return message;
    await new Promise((resolve) => setTimeout(resolve, 20));
  }
  throw new Error(`no message in ${queue} within ${WAIT_MS} ms`);
}

/** Consume until so many have come. */
function take(channel, queue, count, options = {}) {
  return new Promise((resolve, reject) => {
    const messages = [];
    const timer = setTimeout(() => reject(new Error(`${messages.length} messages instead of ${count}`)), WAIT_MS);
    channel.consume(queue, (message) => {
      messages.push(message);
      if (!options.noAck) channel.ack(message);
      if (messages.length === count) {
        clearTimeout(timer);
        resolve(messages);
      }
    }, options).catch(reject);
  });
}

const scenarios = {
  async publishes_and_gets(connection) {
    const channel = await connection.createChannel();
    const declared = await channel.assertQueue(name('queue'), { durable: true });
    assert.deepEqual(declared, { queue: name('queue'), messageCount: 0, consumerCount: 0 });
    const headers = { text: 'grüße', number: 12, double: 1.5, big: 2 ** 40, yes: true, list: [1, 'two'], deep: { a: { b: 1 } } };
    channel.sendToQueue(name('queue'), Buffer.from('hello'), {
      headers, persistent: true, contentType: 'text/plain', correlationId: 'c', replyTo: 'r', messageId: 'm', timestamp: 1700000000,
      type: 't', appId: 'a', priority: 4, expiration: 60000,
    });
    const message = await get(channel, name('queue'));
    assert.equal(message.content.toString(), 'hello');
    assert.deepEqual({ ...message.properties.headers }, headers);
    assert.equal(message.properties.deliveryMode, 2);
    assert.equal(message.properties.expiration, '60000');
    assert.equal(message.properties.priority, 4);
    assert.equal(message.fields.routingKey, name('queue'));
    assert.equal(await channel.get(name('queue')), false);
  },

  async confirms(connection) {
    const channel = await connection.createConfirmChannel();
    await channel.assertQueue(name('queue'));
    for (let number = 0; number < 500; number += 1) {
      channel.sendToQueue(name('queue'), Buffer.from(String(number)), { persistent: true });
    }
    await channel.waitForConfirms();
    const { messageCount } = await channel.checkQueue(name('queue'));
    assert.equal(messageCount, 500);
    const messages = await take(channel, name('queue'), 500);
    assert.deepEqual(messages.map((message) => Number(message.content)), [...Array(500).keys()]);
  },

  async nacks(connection) {
    const channel = await connection.createConfirmChannel();
    await channel.assertQueue(name('queue'), { maxLength: 1, overflow: 'reject-publish' });
    const send = () => new Promise((resolve) => channel.sendToQueue(name('queue'), Buffer.from('x'), {}, resolve));
    assert.equal(await send(), null);
    assert.match((await send()).message, /nacked/);
  },

  async returns_what_is_mandatory(connection) {
    const channel = await connection.createChannel();
    channel.publish('', name('nowhere'), Buffer.from('x'), { mandatory: true });
    const returned = await once(channel, 'return');
    assert.equal(returned.fields.replyCode, 312);
    assert.equal(returned.fields.replyText, 'NO_ROUTE');
    assert.equal(returned.content.toString(), 'x');
  },

  async keeps_to_prefetch(connection) {
    const channel = await connection.createChannel();
    await channel.assertQueue(name('queue'));
    for (const body of 'abcdef') channel.sendToQueue(name('queue'), Buffer.from(body));
    await channel.prefetch(2);
    const messages = [];
    await channel.consume(name('queue'), (message) => messages.push(message));
    const until = async (count) => {
      const deadline = Date.now() + WAIT_MS;
      while (messages.length < count && Date.now() < deadline) await new Promise((resolve) => setTimeout(resolve, 10));
      for (let turn = 0; turn < 3; turn += 1) await channel.checkQueue(name('queue'));
      return messages.map((message) => message.content.toString()).join('');
    };
    assert.equal(await until(2), 'ab');
    channel.ack(messages[1], true);
    assert.equal(await until(4), 'abcd');
    channel.nack(messages[2], false, true);
    assert.equal(await until(5), 'abcdc');
    assert.equal(messages[4].fields.redelivered, true);
  },

  async orders_by_priority(connection) {
    const channel = await connection.createConfirmChannel();
    await channel.assertQueue(name('queue'), { maxPriority: 10 });
    for (const priority of [1, 7, 3, 10, 7]) channel.sendToQueue(name('queue'), Buffer.from(String(priority)), { priority });
    await channel.waitForConfirms();
    const messages = await take(channel, name('queue'), 5);
    assert.deepEqual(messages.map((message) => message.content.toString()), ['10', '7', '7', '3', '1']);
  },

  async routes_by_topic_and_headers(connection) {
    const channel = await connection.createChannel();
    await channel.assertExchange(name('topic'), 'topic', { durable: false });
    await channel.assertExchange(name('headers'), 'headers', { durable: false });
    await channel.bindExchange(name('headers'), name('topic'), 'orders.#');
    const { queue } = await channel.assertQueue('', { exclusive: true });
    await channel.bindQueue(queue, name('headers'), '', { 'x-match': 'all', kind: 'new' });
    channel.publish(name('topic'), 'orders.eu', Buffer.from('no'), { headers: { kind: 'old' } });
    channel.publish(name('topic'), 'bills.eu', Buffer.from('no'), { headers: { kind: 'new' } });
    channel.publish(name('topic'), 'orders.eu', Buffer.from('yes'), { headers: { kind: 'new' } });
    const message = await get(channel, queue);
    assert.equal(message.content.toString(), 'yes');
    assert.equal(message.fields.exchange, name('topic'));
    assert.equal(await channel.get(queue), false);
  },

  async dead_letters(connection) {
    const channel = await connection.createChannel();
    await channel.assertQueue(name('dead'));
    await channel.assertQueue(name('queue'), { deadLetterExchange: '', deadLetterRoutingKey: name('dead'), messageTtl: 50 });
    channel.sendToQueue(name('queue'), Buffer.from('slow'));
    const message = await get(channel, name('dead'));
    const [death] = message.properties.headers['x-death'];
    assert.equal(death.reason, 'expired');
    assert.equal(death.queue, name('queue'));
    assert.equal(death.count, 1);
    assert.deepEqual(death['routing-keys'], [name('queue')]);
    assert.equal(message.properties.headers['x-first-death-reason'], 'expired');
  },

  async answers_calls_directly(connection) {
    const channel = await connection.createChannel();
    await channel.assertQueue(name('calls'));
    const replies = take(channel, 'amq.rabbitmq.reply-to', 1, { noAck: true });
    channel.sendToQueue(name('calls'), Buffer.from('21'), { replyTo: 'amq.rabbitmq.reply-to', correlationId: '7' });
    const server = await connection.createChannel();
    const call = await get(server, name('calls'));
    server.sendToQueue(call.properties.replyTo, Buffer.from(String(2 * Number(call.content))), {
      correlationId: call.properties.correlationId,
    });
    const [reply] = await replies;
    assert.equal(reply.content.toString(), '42');
    assert.equal(reply.properties.correlationId, '7');
  },

  async tells_why_a_channel_closed(connection) {
    const channel = await connection.createChannel();
    const error = once(channel, 'error');
    await assert.rejects(channel.checkQueue(name('nowhere')));
    const why = await error;
    assert.equal(why.code, 404);
    assert.match(why.message, new RegExp(`NOT_FOUND - no queue '${name('nowhere')}' in vhost '/'`));
    const other = await connection.createChannel(); // the connection goes on
    await other.assertQueue(name('queue'), { durable: true });
    const inequivalent = once(other, 'error');
    await assert.rejects(other.assertQueue(name('queue'), { durable: false }));
    assert.equal((await inequivalent).code, 406);
  },

  async tells_when_a_queue_goes(connection) {
    const channel = await connection.createChannel();
    await channel.assertQueue(name('queue'));
    const told = new Promise((resolve) => { channel.consume(name('queue'), resolve); });
    await (await connection.createChannel()).deleteQueue(name('queue'));
    assert.equal(await told, null); // amqplib's word for a consumer that the server cancelled
  },

  async carries_a_large_message(connection) {
    const channel = await connection.createConfirmChannel();
    await channel.assertQueue(name('queue'));
    const body = Buffer.alloc(1000000, 'laneway');
    channel.sendToQueue(name('queue'), body, { persistent: true });
    await channel.waitForConfirms();
    const message = await get(channel, name('queue'));
    assert.ok(body.equals(message.content));
  },

  async counts_what_it_purges_and_deletes(connection) {
    const channel = await connection.createConfirmChannel();
    await channel.assertQueue(name('queue'));
    const fill = async () => {
      for (let number = 0; number < 3; number += 1) channel.sendToQueue(name('queue'), Buffer.from('x'));
      await channel.waitForConfirms();
    };
    await fill();
    assert.deepEqual(await channel.purgeQueue(name('queue')), { messageCount: 3 });
    await fill();
    assert.deepEqual(await channel.deleteQueue(name('queue')), { messageCount: 3 });
  },

  async recovers_what_it_holds(connection) {
    const channel = await connection.createChannel();
    await channel.assertQueue(name('queue'));
    channel.sendToQueue(name('queue'), Buffer.from('x'));
    await get(channel, name('queue'), { noAck: false });
    await channel.recover();
    const again = await get(channel, name('queue'), { noAck: false });
    assert.equal(again.fields.redelivered, true);
    channel.ack(again);
  },
};

async function main() {
  const connection = await amqp.connect(url);
  await scenarios[scenario](connection);
  await connection.close();
}

if (scenario === undefined) {
  console.log(JSON.stringify(Object.keys(scenarios)));
} else {
  main().catch((error) => {
    console.error(error);
    process.exit(1);
  });
}
