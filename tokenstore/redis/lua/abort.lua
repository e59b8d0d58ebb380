-- abort: undoes a begin whose answer never came, and leaves its fence so that
-- it is refused should it still arrive.
--
-- ARGV 1 member of the open set    4 fence's domain
--      2 kind                      5 for how long to keep the fence where
--      3 fence and nonce, 24 bytes   nothing else is to be kept, ms
--                                  6 the open attempt to start over from, or ''
--                                  7 its fence's domain
-- Returns {verdict}; the verdict is
--   undone  the attempt is not pending any more
--   left    the fence was left
--   kept    nothing was to be done
-- or {'unreadable', record} where a newer build wrote the record, or it is corrupt.
local dom = ARGV[4]
local r, _, refusal = load()
if refusal then return refusal end
local verdict = 'left'
if r then
  local s = state(r)
  if s == PENDING and bid(r) == ARGV[3] and domain(r) == dom then
    local before = sub(r, rest_at(r))
    if before ~= '' and not readable(before) then return unreadable(before) end
    if before ~= '' and (state(before) == PENDING or state(before) == UNKNOWN) then
      save(unanswered(r, attempt(r), dom)) -- started over from it: bound as it was
      return {'undone'}
    end
    verdict = 'undone'
    redis.call('ZREM', KEYS[2], ARGV[1])
    r = before
    if r == '' then r = nil end
  elseif ARGV[6] ~= '' then
    if (s == PENDING or s == UNKNOWN) and attempt(r) == ARGV[6] and domain(r) == ARGV[7] and kind(r) == ARGV[2]
      and (ARGV[7] ~= dom or below(fence(r), sub(ARGV[3], 1, 8))) then
      if place(r) == APART then redis.call('DEL', KEYS[4]) end
      save(unanswered(r, p32(u32(r, 5) + 1) .. ARGV[3], dom))
      return {'left'}
    end
    return {'kept'}
  elseif (s ~= ISSUED and s ~= RELEASED) or kind(r) ~= ARGV[2]
    or stale(r, sub(ARGV[3], 1, 8), dom) then
    return {'kept'}
  end
elseif ARGV[2] ~= CLIENT or ARGV[6] ~= '' then
  return {'kept'} -- no begin makes a token, and this must not either
end

if r then
  local domain_end = 124 + byte(r, 118)
  local key_expires = sub(r, 106, 111)
  if state(r) == RELEASED and u48(r, 106) < now + ARGV[5] then key_expires = p48(now + ARGV[5]) end
  r = sub(r, 1, 8) .. ARGV[3] .. sub(r, 33, 105) .. key_expires .. sub(r, 112, 117)
    .. char(#dom) .. sub(r, 119, 123) .. dom .. sub(r, domain_end)
else
  r = VERSION .. RELEASED .. ARGV[2] .. NOWHERE .. '\0\0\0\0' .. ARGV[3] .. NO_ID .. string.rep('\0', 33)
    .. p48(now) .. NEVER .. p48(now) .. NEVER .. p48(now + ARGV[5]) .. NEVER
    .. char(#dom) .. '\0\0\0\0' .. NO_REPAIR .. dom
end
save(r)
return {verdict}
