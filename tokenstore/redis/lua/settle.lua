-- settle: closes an attempt or marks it unknown, where it is the stored one and
-- open, and repairs a record that is missing or older than the attempt. It does not
-- look at the incarnation: what it says is true of a finished execution, whatever
-- the store has lost.
--
-- KEYS  5 the shard's decisions, where this one is to be kept
-- ARGV  1 member of the open set          9 time to live of the key, ms
--       2 attempt, 28 bytes              10 decision's author
--       3 fence's domain                 11 decision's reason
--       4 settlement's ID, 16 bytes      12 whether it may repair, with what is in 13
--       5 state to come to                  to 18: '', 'trusted' or 'untrusted'
--       6 response, packed               13 kind
--       7 response's place               14 route
--       8 time to live of the result,    15 fingerprint, 33 bytes
--         ms                             16 started, 6 bytes
--                                        17 what its begin replaced: state and
--                                           attempt, 29 bytes; '' for nothing
--                                        18 the domain of that attempt's fence
--                                        19 how many decisions to keep
-- Returns {verdict, record, response, now}; the verdict is
--   settled   this settlement stands; the record comes without its response
--   repaired  it stands in place of a record that was missing or older
--   kept      it does not, and the record is as returned
--   unreadable  a newer build wrote the record, or it is corrupt
local target, dom, by, reason = ARGV[5], ARGV[3], ARGV[10], ARGV[11]

-- Whether a record of another attempt is older than this one. It is not where it
-- is completed, nor where its fence is as high as ours.
local function older(r)
  local s, theirs = state(r), domain(r)
  if s == COMPLETED or kind(r) ~= ARGV[13] then return false end
  if theirs == '' then return s == ISSUED end
  if theirs ~= dom then return s .. attempt(r) == ARGV[17] and theirs == ARGV[18] end
  if not below(fence(r), sub(ARGV[2], 5, 12)) then return false end
  return s == ISSUED or s == RELEASED or u32(r, 5) < u32(ARGV[2], 1)
end

local r, _, refusal = load()
if refusal then return refusal end
local knd, to, fp, created, started, token, had, repair
if r and attempt(r) == ARGV[2] and domain(r) == dom then
  local s = state(r)
  if sub(r, 33, 48) == ARGV[4] and (s == target or (s == ISSUED and target == RELEASED)) then
    return {sub(r, 123, 123) == REPAIR and 'repaired' or 'settled', bare(r), '', now}
  end
  if s ~= PENDING and s ~= UNKNOWN then return {'kept', r, body(r), now} end
  knd, to, fp = kind(r), route(r), sub(r, 49, 81)
  created, started, token = sub(r, 82, 87), sub(r, 88, 93), sub(r, 112, 117)
  had, repair = place(r), NO_REPAIR
else
  local may = ARGV[12] == 'trusted' or ARGV[12] == 'untrusted' and target ~= RELEASED
  if not may or r and not older(r) then return {'kept', r or '', r and body(r) or '', now} end
  knd, to, fp, started, repair = ARGV[13], ARGV[14], ARGV[15], ARGV[16], REPAIR
  if r then
    created, token, had = sub(r, 82, 87), sub(r, 112, 117), place(r)
  else
    -- A token's expiry went with its record; unknown, it cannot be used again.
    if target == RELEASED and knd == TOKEN then return {'settled', '', '', now} end
    created, token, had = p48(now), NEVER, NOWHERE
  end
end

local response, where, result_expires, key_expires = ARGV[6], ARGV[7], NEVER, NEVER
if target == COMPLETED then
  result_expires, key_expires = p48(now + ARGV[8]), p48(now + ARGV[9])
elseif target == RELEASED then
  response, where = '', NOWHERE
  if knd ~= TOKEN then
    key_expires = p48(now + ARGV[9])
  else
    target = ISSUED
    -- It was written anew before, and its expiry had gone with its record.
    if token == NEVER then token = p48(now) end
  end
end

local head = VERSION .. target .. knd
local tail = ARGV[2] .. ARGV[4] .. fp .. created .. started .. p48(now)
  .. result_expires .. key_expires .. token
  .. char(#dom, #to, #by, floor(#reason / 256), #reason % 256) .. repair .. dom .. to .. by .. reason
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
    redis.call('LTRIM', KEYS[5], 0, ARGV[19] - 1)
  end
end
return {repair == REPAIR and 'repaired' or 'settled', bare_record, '', now}
