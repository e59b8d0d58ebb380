-- acquire: takes a free lock, with a fencing token.
--
-- KEYS 1 the lock
--      2 the shard's fences: a hash of domain and last, the latest token
-- ARGV 1 owner, 32 random hexadecimal digits, new for each try
--      2 nonce of the attempt and "pid@host", for people who inspect the lock
--      3 time to live, ms
-- Returns "token domain" if the owner has the lock, now or since an earlier copy of this
-- call. Returns "" if another owner has it.
--
-- The value of the lock is "owner token domain nonce pid@host ttl".
--
-- Redis keeps the time of expiry by its wall clock. If that was set back, a lock would outlive its
-- time to live by as much. So a lock with more left than that gets it anew. Its owner has trusted
-- it for less, because no renewal was sent later than now.
--
-- The token is the server's time in microseconds, or the last token plus one if that is
-- greater. It rises past tokens that a fail-over lost, unless the clock of the new primary
-- is behind them. Lua's numbers are exact below 2^53, which is in the year 2255.
--
-- Domain and last share a key, so a Redis that lost its tokens has another domain too. The
-- owner that takes the first lock of a shard names the domain: its digits, as a UUID.
local owner = ARGV[1]
local shard = redis.call('HMGET', KEYS[2], 'domain', 'last')
local domain, last = shard[1], tonumber(shard[2] or '0')
if not domain then
  local sub = string.sub
  domain = sub(owner, 1, 8) .. '-' .. sub(owner, 9, 12) .. '-4' .. sub(owner, 14, 16) .. '-8' .. sub(owner, 18, 20)
    .. '-' .. sub(owner, 21, 32)
end
local t = redis.call('TIME')
local token = t[1] * 1000000 + t[2]
if last and last >= token then token = last + 1 end
if token >= 9007199254740992 then return redis.error_reply('ERR fencing tokens are used up') end
token = string.format('%.0f', token)

if redis.call('SET', KEYS[1], owner .. ' ' .. token .. ' ' .. domain .. ' ' .. ARGV[2] .. ' ' .. ARGV[3], 'NX', 'PX', ARGV[3]) then
  redis.call('HSET', KEYS[2], 'domain', domain, 'last', token)
  return token .. ' ' .. domain
end
local held = redis.call('GET', KEYS[1])
local ttl = string.match(held, ' (%d+)$')
if ttl and redis.call('PTTL', KEYS[1]) > tonumber(ttl) then redis.call('PEXPIRE', KEYS[1], ttl) end
if string.sub(held, 1, 32) ~= owner then return '' end
return string.match(held, '^%x+ (%d+ %S+)')
