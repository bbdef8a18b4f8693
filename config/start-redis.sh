#!/bin/sh
# Renders users.acl with the passwords of the environment and starts the server that the arguments name:
#
#     REDIS_AGENT_PASSWORD=… REDIS_WORKER_PASSWORD=… REDIS_INSPECTOR_PASSWORD=… \
#       sh start-redis.sh redis-server /etc/statecache/redis.conf
#
# REDIS_ACL_TEMPLATE and REDIS_ACL_FILE say what is rendered, and where to. Passwords are letters and digits, 24 at
# least (openssl rand -hex 24): they stand in URLs, where other characters would have to be percent-encoded. The server
# is not handed them. Change one: set it, render again, and `ACL LOAD` as the operator, or start again.
set -eu
umask 077

template=${REDIS_ACL_TEMPLATE:-/etc/statecache/users.acl}
rendered=${REDIS_ACL_FILE:-/run/statecache/users.acl}

rules=$(awk '
  /^#/ || NF == 0 { next }
  /^[ \t]/ { sub(/^[ \t]+/, " "); line = line $0; next }
  { if (line != "") print line; line = $0 }
  END { print line }
' "$template" | sed "s/sc:{/${STATECACHE_PREFIX:-sc}:{/g")

for name in REDIS_AGENT_PASSWORD REDIS_WORKER_PASSWORD REDIS_INSPECTOR_PASSWORD REDIS_OPERATOR_PASSWORD; do
  eval "password=\${$name:-}"
  if [ -z "$password" ] && [ "$name" = REDIS_OPERATOR_PASSWORD ]; then
    rules=$(printf '%s\n' "$rules" | sed "/#{$name}/d")
    continue
  fi
  case $password in
    *[!A-Za-z0-9]*) echo "start-redis: $name holds something else than letters and digits" >&2; exit 78 ;;
  esac
  if [ ${#password} -lt 24 ]; then
    echo "start-redis: $name has ${#password} characters and needs 24: openssl rand -hex 24" >&2
    exit 78
  fi
  digest=$(printf %s "$password" | sha256sum | cut -d ' ' -f 1)
  rules=$(printf '%s\n' "$rules" | sed "s/#{$name}/#$digest/")
  unset "$name"
done

# Redis 7.0 alone has no WAITAOF, and loads no ACL file that names it; clients refuse `disk` there.
if "$1" --version | grep -q ' v=7\.0\.'; then
  rules=$(printf '%s\n' "$rules" | sed 's/ +waitaof//')
fi

printf '%s\n' "$rules" >"$rendered"
unset password
exec "$@" --aclfile "$rendered"
