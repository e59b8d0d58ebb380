-- settle: closes an attempt or marks it unknown, where it is the stored one and
-- open. It does not look at the incarnation: what it says is true of a finished
-- execution, whatever the store has lost.
--
-- KEYS  5 the shard's decisions, where this one is to be kept
-- ARGV  1 member of the open set          9 time to live of the key, ms
--       2 attempt, 28 bytes              10 decision's author
--       3 fence's domain                 11 decision's reason
--       4 settlement's ID, 16 bytes      12 '1': write a missing record anew,
--       5 state to come to                  from 13 to 16; else ''
--       6 response, packed               13 kind
--       7 response's place               14 route
--       8 time to live of the result,    15 fingerprint, 33 bytes
--         ms                             16 started, 6 bytes
--                                        17 how many decisions to keep
-- Returns {verdict, record, response, now}; the verdict is
--   settled  this settlement stands; the record comes without its response
--   kept     it does not, and the record is as returned
local target, dom, by, reason = ARGV[5], ARGV[3], ARGV[10], ARGV[11]
local r = load()
local knd, route, fp, created, started, token, had
if r then
  local s = state(r)
  if attempt(r) ~= ARGV[2] or domain(r) ~= dom then return {'kept', r, body(r), now} end
  if sub(r, 33, 48) == ARGV[4] and (s == target or (s == ISSUED and target == RELEASED)) then
    return {'settled', bare(r), '', now}
  end
  if s ~= PENDING and s ~= UNKNOWN then return {'kept', r, body(r), now} end
  local route_at = 123 + byte(r, 118)
  knd, route, fp = kind(r), sub(r, route_at, route_at + byte(r, 119) - 1), sub(r, 49, 81)
  created, started, token = sub(r, 82, 87), sub(r, 88, 93), sub(r, 112, 117)
  had = place(r)
else
  if ARGV[12] == '' then return {'kept', '', '', now} end
  knd, route, fp, created, started, token = ARGV[13], ARGV[14], ARGV[15], p48(now), ARGV[16], NEVER
  had = NOWHERE
  -- A token's expiry went with its record; unknown, it cannot be used again.
  if target == RELEASED and knd == TOKEN then return {'settled', '', '', now} end
end

local response, where, result_expires, key_expires = ARGV[6], ARGV[7], NEVER, NEVER
if target == COMPLETED then
  result_expires, key_expires = p48(now + ARGV[8]), p48(now + ARGV[9])
elseif target == RELEASED then
  response, where = '', NOWHERE
  if knd == TOKEN then target = ISSUED else key_expires = p48(now + ARGV[9]) end
end

local head = VERSION .. target .. knd
local tail = ARGV[2] .. ARGV[4] .. fp .. created .. started .. p48(now)
  .. result_expires .. key_expires .. token
  .. char(#dom, #route, #by, floor(#reason / 256), #reason % 256) .. dom .. route .. by .. reason
local bare_record = head .. NOWHERE .. tail
if where == INLINE then
  save(head .. INLINE .. tail .. response)
else
  save(head .. where .. tail)
end
-- A result with no time to live is not written at all.
local kept = where == APART and (target ~= COMPLETED or ARGV[8] ~= '0')
if kept then
  if target == COMPLETED then
    redis.call('SET', KEYS[4], response, 'PXAT', now + ARGV[8])
  else
    redis.call('SET', KEYS[4], response)
  end
elseif had == APART then
  redis.call('DEL', KEYS[4])
end
if target == UNKNOWN then
  redis.call('ZADD', KEYS[2], u48(started, 1), ARGV[1])
else
  redis.call('ZREM', KEYS[2], ARGV[1])
end
if KEYS[5] then
  -- decisions.go has the table. Only one that leaves the attempt open can come
  -- here again: sent, then another one, then this one once more.
  local kept_before = false
  if target == UNKNOWN then
    for _, d in ipairs(redis.call('LRANGE', KEYS[5], 0, -1)) do
      kept_before = kept_before or sub(d, 13, 28) == ARGV[4]
    end
  end
  if not kept_before then
    redis.call('LPUSH', KEYS[5], '\1' .. ARGV[5] .. p48(now) .. sub(ARGV[2], 1, 4) .. ARGV[4] .. ARGV[1]
      .. char(#by) .. by .. reason)
    redis.call('LTRIM', KEYS[5], 0, ARGV[17] - 1)
  end
end
return {'settled', bare_record, '', now}
