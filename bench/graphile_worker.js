// node bench/graphile_worker.js DIR SIZE...: installs the schema of the graphile-worker that npm has put under DIR into the database, and
// prints, for batches of these sizes, the statements by which its own worker takes and completes jobs, as its code
// builds them, with their parameters.
const { createRequire } = require("node:module");
const [dir, ...sizes] = process.argv.slice(2);
const load = createRequire(`${dir}/`);
const inside = (file) => load(`./node_modules/graphile-worker/dist/${file}`);

async function main() {
  const { Client } = load("pg");
  const { runMigrations } = load("graphile-worker");
  const { processSharedOptions } = inside("lib.js");
  const { batchGetJobs } = inside("sql/getJobs.js");
  const { batchCompleteJobs } = inside("sql/completeJobs.js");
  const connectionString = "postgres:///postgres";
  await runMigrations({ connectionString });

  const client = new Client({ connectionString });
  await client.connect();
  let last;
  const recording = { query: (query) => client.query((last = query)) };
  const withClient = (use) => use(recording);
  withClient.withRetries = withClient;
  const options = processSharedOptions({ connectionString });
  const statements = {};
  for (const size of sizes.map(Number)) {
    await batchGetJobs(options, withClient, { bench: () => {} }, "nobody", null, size);
    const get = last;
    const nothing = Array.from({ length: size }, () => ({ id: "0", job_queue_id: null }));
    await batchCompleteJobs(options, withClient, "nobody", nothing);
    statements[size] = { get: get.text, tasks: get.values[1], complete: last.text };
  }
  await client.end();
  const { version } = load("./node_modules/graphile-worker/package.json");
  console.log(JSON.stringify({ version, statements }));
}

main().catch((error) => {
  console.error(error.message);
  process.exit(1);
});
