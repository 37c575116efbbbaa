# rails_main.rb lead CONSUMER | write FENCE | autocommit: the reader's part of the Rails files, with what Rails does when it starts.

require "active_record"
require "erb"
require "json"
require "pg"
require "yaml"

ActiveRecord::Base.legacy_connection_handling = false if ActiveRecord.version < Gem::Version.new("7.1")
ActiveRecord::Base.configurations = YAML.load(ERB.new(File.read("config/database.yml")).result, aliases: true)
ActiveRecord::Base.establish_connection

class ApplicationRecord < ActiveRecord::Base
  self.abstract_class = true
end

require "./app/models/lease_record"
require "./lib/leader"

class Applied < ApplicationRecord
  self.table_name = "applied"
end

# What another connection is told of a session that was opened on this one.
def told(record)
  session = record.connection.select_value("SELECT session FROM eskit_lease.session_open('web', '1 min')")
  PG.connect(ENV["DATABASE_URL"]).exec_params("SELECT reason FROM eskit_lease.session_heartbeat($1)", [session]).getvalue(0, 0)
end

def autocommit
  answers = { "outside": told(ApplicationRecord) }
  ApplicationRecord.transaction do
    answers.update("transaction": told(ApplicationRecord), "leases in a transaction": told(LeaseRecord))
    Applied.find_by(consumer: "web")
    answers["prepared"] = ApplicationRecord.connection.select_value("SELECT count(*) FROM pg_prepared_statements")
  end
  session = LeaseRecord.ask("session_open('web', '1 min')")["session"]
  LeaseRecord.connection_pool.enable_query_cache!
  ways = {
    "cached": -> { LeaseRecord.connection.select_one("SELECT * FROM eskit_lease.session_heartbeat('#{session}')") },
    "asked": -> { LeaseRecord.ask("session_heartbeat(?)", session) }
  }
  ways.each { |way, heartbeat| answers[way] = 2.times.map { sleep 0.01; heartbeat.call["expires_at"] }.uniq.size }
  puts JSON.generate(answers)
end

begin
  work = -> { Applied.create!(consumer: ARGV[1]) && false }
  case ARGV[0]
  when "lead" then Leader.new.run(ARGV[1], &work)
  when "write" then Leader.new.fenced(ARGV[1], &work)
  when "autocommit" then autocommit
  end
rescue ActiveRecord::StatementInvalid => error
  puts error.cause.result.error_field(PG::Result::PG_DIAG_SQLSTATE)
end
