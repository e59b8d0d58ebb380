-- abort: undoes a begin that was not answered. It leaves the fence in the record, so that
-- the begin is refused if it arrives later.
--
-- KEYS and the record are in prelude.lua.
-- ARGV 1 member of the open set      5 time to keep the fence if the record has no
--      2 kind                          other use, ms
--      3 fence and nonce, 24 bytes   6 the open attempt to start over from, or ''
--      4 domain of the fence         7 domain of its fence
-- Returns {verdict}. The verdict is
--   undone  the attempt is not pending any more
--   left    the fence is in the record
--   kept    there was nothing to do
-- or {'unreadable', record} if a newer build wrote the record, or it is corrupt.
local member, wanted_kind, mine, dom, keep, over, over_domain = unpack(ARGV)
local my_fence = sub(mine, 1, 8)

local r, refusal = load()
if refusal then return refusal end
local verdict = 'left'
if not r then
  -- No begin makes a token, and a record here would make the token valid.
  if wanted_kind ~= CLIENT or over ~= '' then return {'kept'} end
elseif state(r) == PENDING and bid(r) == mine and domain(r) == dom then
  local before = sub(r, rest_at(r))
  if before ~= '' and not readable(before) then return unreadable(before) end
  if open(before) then
    save(unanswered(r, attempt(r), dom)) -- it started over, so it stays bound to its request
    return {'undone'}
  end
  verdict, r = 'undone', before ~= '' and before or nil
  redis.call('ZREM', KEYS[2], member)
elseif kind(r) ~= wanted_kind or stale(r, my_fence, dom) then
  return {'kept'}
elseif over ~= '' then
  local same_fence = domain(r) == dom and fence(r) == my_fence
  if not open(r) or attempt(r) ~= over or domain(r) ~= over_domain or same_fence then return {'kept'} end
  if place(r) == APART then redis.call('DEL', KEYS[4]) end
  save(unanswered(r, p32(u32(r, 5) + 1) .. mine, dom))
  return {'left'}
elseif not idle(r) then
  return {'kept'}
end

if r then
  local key_expires = sub(r, 106, 111)
  if state(r) == RELEASED and u48(r, 106) < now + keep then key_expires = p48(now + keep) end
  r = sub(r, 1, 8) .. mine .. sub(r, 33, 105) .. key_expires .. sub(r, 112, 117)
    .. char(#dom) .. sub(r, 119, 123) .. dom .. sub(r, 124 + byte(r, 118))
else
  r = VERSION .. RELEASED .. wanted_kind .. NOWHERE .. p32(0) .. mine .. NO_ID .. NO_FINGERPRINT
    .. p48(now) .. NEVER .. p48(now) .. NEVER .. p48(now + keep) .. NEVER
    .. char(#dom, 0, 0, 0, 0) .. NO_REPAIR .. dom
end
save(r)
return {verdict}
