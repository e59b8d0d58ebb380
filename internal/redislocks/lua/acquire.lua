-- shorten: returns the value of a lock, or false without one.
--
-- Redis keeps the time of expiry by its wall clock. If that was set back, a lock would outlive its
-- time to live by as much. So a lock with more left than that gets it anew. Its owner has trusted
-- it for less, because no renewal was sent later than now.
local function shorten(lock)
  local held = redis.call('GET', lock)
  local its = held and string.match(held, ' (%d+)$')
  if its and redis.call('PTTL', lock) > tonumber(its) then redis.call('PEXPIRE', lock, its) end
  return held
end

-- acquire: a function of other scripts. It takes a free lock, with a fencing token.
--
--   lock    the key of the lock
--   fences  the key of the shard's fences: a hash of domain and last, the latest token
--   owner   32 random hexadecimal digits, new for each try
--   holder  nonce of the attempt and "pid@host", for people who inspect the lock
--   ttl     time to live, ms
--   t       what TIME returned to this script
-- Returns token, domain and true if the owner has taken the lock. Returns token, domain and false
-- if it has it since an earlier copy of the call, and gives it its time to live anew. Returns nil if
-- another owner has it, and nil and an error reply if there are no more tokens.
--
-- The value of the lock is "owner token domain nonce pid@host ttl".
--
-- The token is the server's time in microseconds, or the last token plus one if that is
-- greater. It rises past tokens that a fail-over lost, unless the clock of the new primary
-- is behind them. Lua's numbers are exact below 2^53, which is in the year 2255.
--
-- Domain and last share a key, so a Redis that lost its tokens has another domain too. The
-- owner that takes the first lock of a shard names the domain: its digits, as a UUID.
local function acquire(lock, fences, owner, holder, ttl, t)
  local shard = redis.call('HMGET', fences, 'domain', 'last')
  local domain, last = shard[1], tonumber(shard[2] or '0')
  if not domain then
    local sub = string.sub
    domain = sub(owner, 1, 8) .. '-' .. sub(owner, 9, 12) .. '-4' .. sub(owner, 14, 16) .. '-8' .. sub(owner, 18, 20)
      .. '-' .. sub(owner, 21, 32)
  end
  local token = t[1] * 1000000 + t[2]
  if last and last >= token then token = last + 1 end
  if token >= 9007199254740992 then return nil, redis.error_reply('ERR fencing tokens are used up') end
  token = string.format('%.0f', token)

  if redis.call('SET', lock, owner .. ' ' .. token .. ' ' .. domain .. ' ' .. holder .. ' ' .. ttl, 'NX', 'PX', ttl) then
    redis.call('HSET', fences, 'domain', domain, 'last', token)
    return token, domain, true
  end
  local held = shorten(lock)
  if string.sub(held, 1, 32) ~= owner then return nil end
  redis.call('PEXPIRE', lock, ttl) -- the owner trusts its lease from before this copy was sent
  token, domain = string.match(held, '^%x+ (%d+) (%S+)')
  return token, domain, false
end
