// Calls the functions of eskit_lease that ../test_drivers.py sends, with node-postgres, as docs/drivers.md says. That
// test describes the lines. Arguments: the URL of the database; `native` or `text`.
const readline = require("node:readline");
const { Client } = require("pg");
const [url, style] = process.argv.slice(2);

const elements = (of) => (value) => value.split("|").map((element) => (element === "\\N" ? null : of(element)));
const native = {
  "integer": Number,
  "bigint": BigInt,
  "boolean": (value) => value === "true",
  "timestamp with time zone": (value) => new Date(value),
  "jsonb": JSON.parse, // an object; node-postgres would take an array for one of PostgreSQL's, so pass JSON.stringify(array)
  "text[]": elements(String),
  "bigint[]": elements(BigInt),
  "integer[]": elements(Number),
  "jsonb[]": elements(JSON.parse),
  "uuid[]": elements(String),
};
const array = (value) => `{${elements(JSON.stringify)(value).map((element) => element ?? "NULL").join(",")}}`;

function passed(type, value) {
  if (value === "\\N") return null;
  if (style === "native") return type in native ? native[type](value) : value;
  return type.endsWith("[]") ? array(value) : value;
}

async function main() {
  const db = new Client({ connectionString: url });
  await db.connect();
  for await (const line of readline.createInterface({ input: process.stdin })) {
    const [name, ...rest] = line.split("\t");
    const values = [];
    for (let i = 0; i < rest.length; i += 2) values.push(passed(rest[i], rest[i + 1]));
    const marks = values.map((_, i) => `$${i + 1}`).join(", ");
    try {
      const call = `SELECT coalesce(jsonb_agg(x), '[]')::text AS rows FROM (SELECT * FROM eskit_lease.${name}(${marks})) AS x`;
      console.log((await db.query(call, values)).rows[0].rows);
    } catch (error) {
      console.log(`!${error.code} ${error.message}`);
    }
  }
  await db.end();
}

main();
