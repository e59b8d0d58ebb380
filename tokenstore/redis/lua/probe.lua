-- probe: looks at a shard as a begin does, and leaves no record. One probe at each server also
-- writes, and so fails where a begin would fail. It runs all commands of the scripts, on a key
-- of its own, so that a user who may not run one of them is noticed. The error names the
-- command. TIME is run by clock.lua.
--
-- KEYS and the record are in prelude.lua. KEYS[1] is a key that nothing else uses.
-- ARGV 1 expected incarnation
--      2 reading of the clocks
--      3 '1': write
-- Returns {verdict, evidence, '1' if the canary is there, now}. The verdict is
--   ready   a begin would be accepted
--   lost    the shard lost its records
--   jumped  the clock seems to have jumped ahead
local refusal
local function run(command, ...)
  local answer = redis.pcall(command, ...)
  if not refusal and type(answer) == 'table' and answer.err then
    refusal = redis.error_reply(string.gsub(answer.err, '^-', '') .. ' (' .. command .. ')')
  end
  return answer
end

local found = run('mget', KEYS[3], KEYS[5], KEYS[6])
if ARGV[3] == '1' then
  run('set', KEYS[1], '', 'PXAT', now + 1000)
  run('get', KEYS[1])
  run('del', KEYS[1])
  run('zadd', KEYS[1], 1, '')
  run('zcount', KEYS[1], 0, 1)
  run('zrange', KEYS[1], 0, 0)
  run('zrem', KEYS[1], '')
  run('lpush', KEYS[1], '')
  run('lrange', KEYS[1], 0, 0)
  run('ltrim', KEYS[1], 1, 0)
  run('del', KEYS[1])
  run('hset', KEYS[1], 'f', '')
  run('hget', KEYS[1], 'f')
  run('del', KEYS[1])
end
if refusal then return refusal end
if found[1] ~= ARGV[1] then return {'lost', '', '', p48(now)} end
if jumped(found[2], found[3], ARGV[2]) then return {'jumped', found[2], found[3] and '1' or '', p48(now)} end
renew(found[2], ARGV[2])
return {'ready', '', '', p48(now)}
