-- begin_locked: takes the lock of a key and begins an attempt under its fence. The functions of
-- clock.lua and of acquire.lua are in front of it. begin.lua and what it needs follow, as the
-- function begin, and begin_unlock.lua.
--
-- KEYS and the record are in prelude.lua.
-- KEYS  7 the lock              8 the shard's fences
--       9 a key that is never there: the script deletes it, to learn whether the server is a
--         primary. Left out where that is known
-- ARGV as in begin.lua, but
--       4 nonce of the attempt, 16 bytes, and 5 '', because the script knows the fence
--      12 owner                13 holder of the lock          14 its time to live, ms
--      15 the last moment for this call by the server's clock, 6 bytes
-- Returns {verdict, record, response, now, token, domain}. The verdict is one of those of begin.lua, or
--   locked  another owner has the lock
--   late    the last moment is over
-- The lock is taken if the verdict is begun, and only then.
local function packed_domain(domain)
  local digits = sub(domain, 1, 8) .. sub(domain, 10, 13) .. sub(domain, 15, 18) .. sub(domain, 20, 23) .. sub(domain, 25, 36)
  local dashes = sub(domain, 9, 9) .. sub(domain, 14, 14) .. sub(domain, 19, 19) .. sub(domain, 24, 24)
  if dashes ~= '----' or #digits ~= 32 or string.find(digits, '[^0-9a-f]') then return domain end
  return '\0' .. string.gsub(digits, '%x%x', function(d) return char(tonumber(d, 16)) end) .. sub(domain, 37)
end

local lock, nonce, owner = KEYS[7], ARGV[4], ARGV[12]
if now > u48(ARGV[15], 1) then return {'late'} end

local found = redis.call('MGET', KEYS[1], KEYS[5], KEYS[6], KEYS[3])
local r = found[1]

-- The answer of a script that leaves everything as it is. A time that may have jumped stays untold.
local function unchanged(verdict)
  if KEYS[9] then
    local answer = redis.pcall('DEL', KEYS[9])
    if type(answer) == 'table' and string.find(answer.err, 'READONLY', 1, true) then return answer end
  end
  local believed = not jumped(found[2], found[3], ARGV[11])
  return {verdict, r or '', '', believed and p48(now) or ''}
end

if not r and ARGV[3] == '\1' and found[4] == ARGV[1] and not jumped(found[2], found[3], ARGV[11]) then
  return unchanged('kept') -- no such token
end
if r and #r >= 123 and sub(r, 1, 1) == '\2' then
  local state, own = byte(r, 2), sub(r, 17, 32) == nonce
  local open, completed = state == 2 or state == 5, state == 3 and u48(r, 106) > now
  if open or completed or own then
    if state == 2 and own and redis.call('GETRANGE', lock, '0', '31') == owner then
      redis.call('SET', KEYS[1], r) -- for WAIT, see begin.lua
      local token, domain = string.match(redis.call('GET', lock), '^%x+ (%d+) (%S+)')
      return {'begun', r, '', p48(now), token, domain}
    end
    if completed and u48(r, 100) <= now and jumped(found[2], found[3], ARGV[11]) then
      return {'jumped', found[2], found[3] and '1' or '', p48(now)}
    end
    return unchanged(open and shorten(lock) and 'locked' or 'kept')
  end
end

local token, domain, taken = acquire(lock, KEYS[8], owner, ARGV[13], ARGV[14], t)
if not token and domain then return domain end
if not taken then return unchanged('locked') end
local high = floor(token / 281474976710656)
ARGV[4] = char(0, high) .. p48(token - high * 281474976710656) .. nonce
ARGV[5] = packed_domain(domain)

local function begin()
