-- begin: starts an attempt where the record allows it.
--
-- ARGV 1 incarnation expected      5 fence's domain
--      2 member of the open set    6 route
--      3 kind                      7 fingerprint, 33 bytes
--      4 fence and nonce, 24 bytes
-- Returns {verdict, record, response, now, incarnation where lost}; the verdict is
--   begun  the attempt is pending, now or by an earlier copy of this call
--   kept   the record does not allow it
--   stale  the fence comes too late
--   lost   the shard lost its records
local dom, route = ARGV[5], ARGV[6]
local r, incarnation = load()
if incarnation ~= ARGV[1] then return {'lost', '', '', now, incarnation or ''} end

local number, created, token, before = 0, p48(now), NEVER, ''
if r then
  local s = state(r)
  if s == PENDING and bid(r) == ARGV[4] and domain(r) == dom then
    -- Written again, for WAIT: it asks for what this connection wrote last, and
    -- the earlier copy may have come over another one. SET counts even where it
    -- changes nothing; ZADD would not.
    save(r)
    return {'begun', r, '', now}
  end
  if stale(r, sub(ARGV[4], 1, 8), dom) then return {'stale', r, body(r), now} end
  if (s ~= ISSUED and s ~= RELEASED) or kind(r) ~= ARGV[3] then
    return {'kept', r, body(r), now}
  end
  number, created, token, before = u32(r, 5), sub(r, 82, 87), sub(r, 112, 117), r
elseif ARGV[3] ~= CLIENT then
  return {'kept', '', '', now}
end

r = VERSION .. PENDING .. ARGV[3] .. NOWHERE .. p32(number + 1) .. ARGV[4] .. NO_ID .. ARGV[7]
  .. created .. p48(now) .. NEVER .. NEVER .. NEVER .. token
  .. char(#dom, #route) .. '\0\0\0' .. dom .. route .. before
save(r)
redis.call('ZADD', KEYS[2], now, ARGV[2])
return {'begun', r, '', now}
