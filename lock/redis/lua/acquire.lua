-- acquire: takes a lock that nobody holds, with a fencing token.
--
-- KEYS 1 the lock
--      2 the shard's fences: a hash of domain and last, the latest token
-- ARGV 1 owner, 32 hexadecimal digits, one for each try to take the lock
--      2 nonce of the attempt, for whoever looks at the lock
--      3 time to live, ms
--      4 the lock domain, where the shard has none
-- Returns {verdict, token, domain}; the verdict is
--   taken   the lock is the owner's, now or by an earlier copy of this call
--   locked  somebody else holds it; neither token nor domain
--
-- The lock's value is "owner token domain nonce".
--
-- The token is the server's time in microseconds, or the last token plus one
-- where that is greater: it grows even past tokens that a fail-over has lost,
-- as long as the clock of the new primary is not behind those of the old one's
-- last tokens. Lua's numbers hold it exactly below 2^53, which is in the year
-- 2255.
--
-- Domain and last are one key, so that one is never lost without the other: a
-- Redis that lost its tokens has another domain.
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
