-- settle_completed: the short way of settle, for a pending attempt that completes with a
-- response in the record, without a decision, and with the times to live of its begin. It
-- writes and returns the same as settle.lua. In any other case it changes nothing, and
-- settle.lua decides.
--
-- KEYS and the record are in prelude.lua. ARGV and the reply are in settle.lua.
local mine, dom, id, target, response, where = ARGV[2], ARGV[3], ARGV[4], ARGV[5], ARGV[6], ARGV[7]
local completes = target == '\3' and where == '\1'
local decided = ARGV[10] ~= '' or ARGV[11] ~= '' or KEYS[7]
if completes and not decided then
  local found = redis.call('MGET', KEYS[1], KEYS[5]) -- unlike GET it has no error for a key of another type
  local r, from = found[1], start_of_life(found[2], ARGV[20])
  if r and #r >= 123 and sub(r, 5, 32) == mine then
    local head, texts = sub(r, 1, 4), 123 + byte(r, 118) + byte(r, 119) -- where domain and route end
    local pending = head == '\2\2\0\0' or head == '\2\2\1\0' -- of either kind
    local undecided = sub(r, 120, 123) == '\0\0\0\0'
    local same_domain = sub(r, 124, 123 + byte(r, 118)) == dom
    local expires = from + ARGV[9]
    local promised = sub(r, 100, 111) == ARGV[19]
    if pending and undecided and same_domain and promised and texts <= #r and expires > now then
      local done, time = '\2\3' .. sub(r, 3, 3), p48(now)
      local rest = mine .. id .. sub(r, 49, 93) -- the settlement, then what was begun and when
        .. time .. p48(from + ARGV[8]) .. p48(expires) .. sub(r, 112, texts)
      redis.call('SET', KEYS[1], done .. where .. rest .. response, 'PXAT', expires)
      redis.call('ZREM', KEYS[2], ARGV[1])
      return {'settled', done .. '\0' .. rest, '', time}
    end
  end
end

