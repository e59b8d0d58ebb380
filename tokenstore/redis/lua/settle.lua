-- settle: closes an attempt or marks it unknown, if the record has that attempt and it is
-- open. It repairs a record that is missing or older than the attempt. It does not look
-- at the incarnation, because the outcome of an execution is true even if the store lost
-- its records.
--
-- KEYS and the record are in prelude.lua.
-- KEYS  7 the shard's decisions, if this one is to be kept
-- ARGV  1 member of the open set        10 author of the decision
--       2 attempt, 28 bytes             11 reason of the decision
--       3 domain of its fence           12 repair with 13 to 18: 'trusted' or
--       4 ID of the settlement, 16 bytes   'untrusted' lease, or '' for no repair
--       5 new state                     13 kind
--       6 response, packed              14 route
--       7 place of the response         15 fingerprint, 33 bytes
--       8 time to live of the result,   16 started, 6 bytes
--         ms                            17 state and attempt that the begin replaced,
--       9 time to live of the key, ms      29 bytes, or ''
--                                       18 domain of that attempt's fence
--                                       19 8 and 9 as begin has them
--                                       20 reading of the clocks, see clock.lua
--                                       21 number of decisions to keep
-- The record keeps the key for at least as long as its route promised.
-- Returns {verdict, record, response, now}. The verdict is
--   settled     this settlement stands; the record comes without its response
--   repaired    this settlement stands in place of a missing or older record
--   kept        another record stands, and is returned
--   unreadable  a newer build wrote the record, or it is corrupt
local member, mine, dom, id, target, response, where, result_ttl, key_ttl, by, reason = unpack(ARGV, 1, 11)
local lease, its_kind, its_route, its_fingerprint, its_started, replaced, replaced_domain = unpack(ARGV, 12, 18)

-- Whether a record of another attempt is older than this attempt. A completed record is
-- not, and neither is a record with an equal or higher fence.
local function older(r)
  if state(r) == COMPLETED or kind(r) ~= its_kind then return false end
  if domain(r) == '' then return state(r) == ISSUED end
  if domain(r) ~= dom then return state(r) .. attempt(r) == replaced and domain(r) == replaced_domain end
  if not below(fence(r), sub(mine, 5, 12)) then return false end
  return idle(r) or u32(r, 5) < u32(mine, 1)
end

local r, refusal, _, evidence = load()
if refusal then return refusal end
local from = start_of_life(evidence, ARGV[20])
local promised_result, promised_key = promised(r)
result_ttl, key_ttl = math.max(result_ttl, promised_result), math.max(key_ttl, promised_key)
local created, token, had, repair = p48(now), NEVER, NOWHERE, NO_REPAIR
if r then created, token, had = sub(r, 82, 87), sub(r, 112, 117), place(r) end
if r and attempt(r) == mine and domain(r) == dom then
  if sub(r, 33, 48) == id and (state(r) == target or state(r) == ISSUED and target == RELEASED) then
    return {sub(r, 123, 123) == REPAIR and 'repaired' or 'settled', bare(r), '', p48(now)}
  end
  if not open(r) then return {'kept', r, '', p48(now)} end
  its_kind, its_route, its_fingerprint, its_started = kind(r), route(r), sub(r, 49, 81), sub(r, 88, 93)
else
  -- Completed and unknown only forbid runs. Released allows one, so it needs a lease that
  -- proves that no later attempt has begun.
  local may = lease == 'trusted' or lease == 'untrusted' and target ~= RELEASED
  if not may or r and not older(r) then return {'kept', r or '', '', p48(now)} end
  -- The expiry of a missing token is lost. The token stays missing and cannot be used.
  if not r and target == RELEASED and its_kind == TOKEN then return {'settled', '', '', p48(now)} end
  repair = REPAIR
end

local result_expires, key_expires = NEVER, NEVER
if target == COMPLETED then
  result_expires, key_expires = p48(from + result_ttl), p48(from + math.max(key_ttl, result_ttl))
elseif target == UNKNOWN then
  result_expires, key_expires = p48(result_ttl), p48(key_ttl)
elseif target == RELEASED then
  response, where = '', NOWHERE
  if its_kind == TOKEN then
    target = ISSUED
    if token == NEVER then token = p48(now) end -- a repair made this record without the expiry
  else
    key_expires = p48(from + key_ttl)
  end
end

local head = VERSION .. target .. its_kind
local tail = mine .. id .. its_fingerprint .. created .. its_started .. p48(now)
  .. result_expires .. key_expires .. token
  .. char(#dom, #its_route, #by, floor(#reason / 256), #reason % 256) .. repair .. dom .. its_route .. by .. reason
save(head .. where .. tail .. (where == INLINE and response or ''))
if where == APART and target ~= COMPLETED then
  redis.call('SET', KEYS[4], response)
elseif where == APART and result_ttl > 0 then
  redis.call('SET', KEYS[4], response, 'PXAT', from + result_ttl)
elseif had == APART then
  redis.call('DEL', KEYS[4])
end
if target == UNKNOWN then
  redis.call('ZADD', KEYS[2], u48(its_started, 1), member)
else
  redis.call('ZREM', KEYS[2], member)
end

if KEYS[7] then
  -- decisions.go has the format. A decision that leaves the attempt open can come twice
  -- with another decision in between.
  local kept_before = false
  if target == UNKNOWN then
    for _, d in ipairs(redis.call('LRANGE', KEYS[7], 0, -1)) do
      kept_before = kept_before or sub(d, 13, 28) == id
    end
  end
  if not kept_before then
    redis.call('LPUSH', KEYS[7], '\1' .. ARGV[5] .. p48(now) .. sub(mine, 1, 4) .. id .. member .. char(#by) .. by .. reason)
    redis.call('LTRIM', KEYS[7], 0, ARGV[21] - 1)
  end
end
return {repair == REPAIR and 'repaired' or 'settled', head .. NOWHERE .. tail, '', p48(now)}
