-- Whether a state that a commit misses is `new`: on its creator's word, or by proof, which stands in `hydrate_absent`:
-- nothing was flushed, in this epoch, since Postgres was found to hold nothing of it, and it is not dirty; nor has anything
-- been retired that such a Postgres lacks.
    local new = ARGV[at + ASSUME_NEW] == '1' or ARGV[at + ASSUME_NEW] == 'e' .. epoch
    local looked_in, watermark = string.match(ARGV[at + ASSUME_NEW], '^w(%d+)-(%d+)$')
    if looked_in == epoch then
      local held, dirty = call('HMGET', meta, 'flushed', 'retired'), pcall('ZSCORE', unflushed, ARGV[at])
      if type(dirty) == 'table' and dirty.err then return { nonce, 'FOREIGN', unflushed, dirty.err } end
      local flushed, retired = tonumber(held[1] or '0'), tonumber(held[2] or '0')
      new = tonumber(watermark) >= math.max(flushed, retired) and (tonumber(dirty or '-1') <= flushed)
    end
