-- begin: starts an attempt where the record allows it.
--
-- ARGV 1 incarnation expected      5 fence's domain
--      2 member of the open set    6 route
--      3 kind                      7 fingerprint, 33 bytes
--      4 fence and nonce, 24 bytes 8 the open attempt to start over from, or ''
--                                  9 its fence's domain
-- Returns {verdict, record, response, now, incarnation where lost}; the verdict is
--   begun  the attempt is pending, now or by an earlier copy of this call
--   kept   the record does not allow it
--   stale  the fence comes too late
--   lost   the shard lost its records
--   unreadable  a newer build wrote the record, or it is corrupt
local dom, to = ARGV[5], ARGV[6]
local r, incarnation, refusal = load()
if refusal then return refusal end
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
  local free = s == ISSUED or s == RELEASED
  if ARGV[8] ~= '' then
    free = (s == PENDING or s == UNKNOWN) and attempt(r) == ARGV[8] and domain(r) == ARGV[9]
      and sub(r, 49, 81) == ARGV[7] and not (fence(r) == sub(ARGV[4], 1, 8) and ARGV[9] == dom)
  end
  if not free or kind(r) ~= ARGV[3] then return {'kept', r, body(r), now} end
  number, created, token, before = u32(r, 5), sub(r, 82, 87), sub(r, 112, 117), bare(r)
  if place(r) == APART then redis.call('DEL', KEYS[4]) end
elseif ARGV[3] ~= CLIENT or ARGV[8] ~= '' then
  return {'kept', '', '', now}
end

r = VERSION .. PENDING .. ARGV[3] .. NOWHERE .. p32(number + 1) .. ARGV[4] .. NO_ID .. ARGV[7]
  .. created .. p48(now) .. NEVER .. NEVER .. NEVER .. token
  .. char(#dom, #to) .. '\0\0\0' .. NO_REPAIR .. dom .. to .. before
save(r)
redis.call('ZADD', KEYS[2], now, ARGV[2])
return {'begun', r, '', now}
