-- settle_completed: the short way of settle, for a pending attempt that completes with a
-- response in the record and without a decision. It writes and returns the same as
-- settle.lua. In any other case it changes nothing, and settle.lua decides.
--
-- KEYS and the record are in prelude.lua. ARGV and the reply are in settle.lua.
local mine, dom, where, by, reason = ARGV[2], ARGV[3], ARGV[7], ARGV[10], ARGV[11]
local r = ARGV[5] == '\3' and where == '\1' and by == '' and reason == '' and not KEYS[5]
  and redis.call('MGET', KEYS[1])[1] -- unlike GET it has no error for a key of another type
if r and #r >= 123 and sub(r, 5, 32) == mine then
  local head, expires = sub(r, 1, 4), now + ARGV[9]
  local texts = 123 + byte(r, 118) + byte(r, 119) -- where domain and route end
  if (head == '\1\2\0\0' or head == '\1\2\1\0') -- pending, of either kind
    and sub(r, 120, 123) == '\0\0\0\0' and texts <= #r and sub(r, 124, 123 + byte(r, 118)) == dom
    and expires > now then
    local done, time = '\1\3' .. sub(r, 3, 3), p48(now)
    local rest = mine .. ARGV[4] .. sub(r, 49, 93) -- the settlement, then what was begun and when
      .. time .. p48(now + ARGV[8]) .. p48(expires) .. sub(r, 112, texts)
    redis.call('SET', KEYS[1], done .. where .. rest .. ARGV[6], 'PXAT', expires)
    redis.call('ZREM', KEYS[2], ARGV[1])
    return {'settled', done .. '\0' .. rest, '', time}
  end
end

