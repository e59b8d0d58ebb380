-- begin: starts an attempt if the record allows it.
--
-- KEYS and the record are in prelude.lua.
-- ARGV 1 expected incarnation      5 domain of the fence
--      2 member of the open set    6 route
--      3 kind                      7 fingerprint, 33 bytes
--      4 fence and nonce, 24 bytes 8 the open attempt to start over from, or ''
--                                  9 domain of its fence
--                                 10 times to live of the result and of the key, in ms,
--                                    6 bytes each
--                                 11 reading of the clocks, see clock.lua
-- Returns {verdict, record, response, now}. The verdict is
--   begun       the attempt is pending, now or since an earlier copy of this call
--   kept        the record does not allow it
--   stale       the fence comes too late
--   lost        the shard lost its records
--   jumped      the clock seems to have jumped ahead; in place of a record the reply has
--               the evidence, and '1' if the canary is there
--   unreadable  a newer build wrote the record, or it is corrupt
local want, member, wanted_kind, mine, dom, to, fingerprint = unpack(ARGV, 1, 7)
local over, over_domain, ttls = ARGV[8], ARGV[9], ARGV[10]

-- Whether the attempt may start from a record of its kind.
local function allows(r)
  if over == '' then return idle(r) end
  if not open(r) or attempt(r) ~= over or domain(r) ~= over_domain then return false end
  return sub(r, 49, 81) == fingerprint and (fence(r) ~= sub(mine, 1, 8) or over_domain ~= dom)
end

local r, refusal, incarnation, evidence, canary = load()
if refusal then return refusal end
if incarnation ~= want then return {'lost'} end
if jumped(evidence, canary, ARGV[11]) then return {'jumped', evidence, canary and '1' or '', p48(now)} end
renew(evidence, ARGV[11])

local number, created, token, before = 0, p48(now), NEVER, ''
local result_ttl, key_ttl = promised(r)
if r then
  if state(r) == PENDING and bid(r) == mine and domain(r) == dom then
    -- Write it again for WAIT, which concerns the last write of this connection. The
    -- earlier copy may have used another connection. An unchanged SET counts as a
    -- write, and an unchanged ZADD does not.
    save(r)
    return {'begun', r, '', p48(now)}
  end
  if stale(r, sub(mine, 1, 8), dom) then return {'stale', r, '', p48(now)} end
  if kind(r) ~= wanted_kind or not allows(r) then return {'kept', r, '', p48(now)} end
  number, created, token, before = u32(r, 5), sub(r, 82, 87), sub(r, 112, 117), bare(r)
  if place(r) == APART then redis.call('DEL', KEYS[4]) end
elseif wanted_kind ~= CLIENT or over ~= '' then
  return {'kept', '', '', p48(now)}
end

r = VERSION .. PENDING .. wanted_kind .. NOWHERE .. p32(number + 1) .. mine .. NO_ID .. fingerprint
  .. created .. p48(now) .. NEVER
  .. p48(math.max(result_ttl, u48(ttls, 1))) .. p48(math.max(key_ttl, u48(ttls, 7))) .. token
  .. char(#dom, #to, 0, 0, 0) .. NO_REPAIR .. dom .. to .. before
save(r)
redis.call('ZADD', KEYS[2], now, member)
return {'begun', r, '', p48(now)}
