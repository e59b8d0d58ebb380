-- acquire: takes a free lock, with a fencing token.
--
-- KEYS 1 the lock
--      2 the shard's fences: a hash of domain and last, the latest token
-- ARGV 1 owner, 32 hexadecimal digits, a new one for each try
--      2 nonce of the attempt, for people who inspect the lock
--      3 time to live, ms
--      4 the lock domain for a shard without one
-- Returns {verdict, token, domain}. The verdict is
--   taken   the owner has the lock, now or since an earlier copy of this call
--   locked  another owner has it; token and domain are missing
--
-- The value of the lock is "owner token domain nonce".
--
-- The token is the server's time in microseconds, or the last token plus one if that is
-- greater. It rises past tokens that a fail-over lost, unless the clock of the new primary
-- is behind them. Lua's numbers are exact below 2^53, which is in the year 2255.
--
-- Domain and last share a key, so a Redis that lost its tokens has another domain too.
local held = redis.call('GET', KEYS[1])
if held then
  if string.sub(held, 1, 32) ~= ARGV[1] then return {'locked'} end
  local token, domain = string.match(held, '^%x+ (%d+) (%S+)')
  return {'taken', token, domain}
end

local shard = redis.call('HMGET', KEYS[2], 'domain', 'last')
local domain, last = shard[1] or ARGV[4], tonumber(shard[2] or '0')
local t = redis.call('TIME')
local token = t[1] * 1000000 + t[2]
if last and last >= token then token = last + 1 end
if token >= 9007199254740992 then return redis.error_reply('ERR fencing tokens are used up') end
token = string.format('%.0f', token)

redis.call('HSET', KEYS[2], 'domain', domain, 'last', token)
redis.call('SET', KEYS[1], table.concat({ARGV[1], token, domain, ARGV[2]}, ' '), 'NX', 'PX', ARGV[3])
return {'taken', token, domain}
