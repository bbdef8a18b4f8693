#!/bin/sh
# Makes the passwords of docker-compose.yml, each in a file of its own in config/secrets:
#
#     sh config/passwords.sh
#
# One that is there stays as it is, so this may be run again. They are letters and digits, for they stand in URLs.
set -eu
cd "$(dirname "$0")"
umask 077
mkdir -p secrets

make() {
  if [ -s "secrets/$1" ]; then return; fi
  od -An -N24 -tx1 /dev/urandom | tr -d ' \n' >"secrets/$1"
  # In a container another user reads it; here the folder lets nobody else in.
  chmod 444 "secrets/$1"
}

# Redis: agents, workers and migrations, people who look and health checks, whoever runs the server.
make REDIS_AGENT_PASSWORD
make REDIS_WORKER_PASSWORD
make REDIS_INSPECTOR_PASSWORD
make REDIS_OPERATOR_PASSWORD

# Postgres: the superuser, then the roles of roles.sql.
make POSTGRES_PASSWORD
make POSTGRES_MIGRATE_PASSWORD
make POSTGRES_WORKER_PASSWORD
make POSTGRES_AGENT_PASSWORD
make POSTGRES_INSPECTOR_PASSWORD

# Grafana's user admin, in the profile `monitoring`.
make GRAFANA_ADMIN_PASSWORD
