-- begin_fresh: the short way of begin, for a client key without a record, soon after the
-- last look at the clock. It writes and returns the same as begin.lua. In any other case it
-- changes nothing, and begin.lua decides.
--
-- KEYS and the record are in prelude.lua. ARGV and the reply are in begin.lua.
local found = redis.call('MGET', KEYS[1], KEYS[3], KEYS[5], KEYS[6])
local since = found[3] and found[4] and now - u48(found[3], 1) or RENEWAL -- the last look
if not found[1] and found[2] == ARGV[1] and ARGV[3] == '\0' and ARGV[8] == '' and since >= 0 and since < RENEWAL then
  local bid, dom, to, fingerprint, ttls, time = ARGV[4], ARGV[5], ARGV[6], ARGV[7], ARGV[10], p48(now)
  local r = '\2\2\0\0\0\0\0\1' .. bid -- version, pending, client key, no response, attempt 1
    .. '\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0' .. fingerprint -- no settlement
    .. time .. time -- created and started
    .. '\0\0\0\0\0\0' .. ttls .. '\0\0\0\0\0\0' -- not settled, and no token
    .. char(#dom, #to, 0, 0, 0, 0) .. dom .. to -- no decision, no repair
  redis.call('SET', KEYS[1], r)
  redis.call('ZADD', KEYS[2], now, ARGV[2])
  return {'begun', r, '', time}
end

