#!/bin/sh
# Exports what the files of /run/secrets hold, each as the variable of its name, puts it into the URLs that name it, as
# redis://worker:${REDIS_WORKER_PASSWORD}@redis:6379/0, and becomes the program that the arguments name. So no password
# stands in a container's settings, where `docker inspect` would show it.
set -eu

for file in "${SECRETS_DIR:-/run/secrets}"/*; do
  [ -e "$file" ] || continue
  secret=$(cat "$file")
  export "$(basename "$file")=$secret"
done
for name in STATECACHE_REDIS_URL STATECACHE_POSTGRES_URL PGPASSWORD; do
  eval "given=\${$name:-}"
  case $given in
    *'${'*) eval "export $name=\"$given\"" ;;
  esac
done
unset secret given name file SECRETS_DIR
exec "$@"
