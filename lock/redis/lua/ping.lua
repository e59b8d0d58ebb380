-- ping: runs every command of the other scripts, on a key of its own. It fails where taking,
-- renewing or giving back a lock would fail, and the error names the command.
--
-- KEYS 1 a key that nothing else uses
--      2 the shard's fences
-- ARGV 1 time to live, ms
-- Returns 1.
local refusal
local function run(command, ...)
  local answer = redis.pcall(command, ...)
  if not refusal and type(answer) == 'table' and answer.err then
    refusal = redis.error_reply(string.gsub(answer.err, '^-', '') .. ' (' .. command .. ')')
  end
end

run('time')
run('hmget', KEYS[2], 'domain', 'last')
run('set', KEYS[1], '', 'NX', 'PX', ARGV[1])
run('get', KEYS[1])
run('getrange', KEYS[1], '0', '31')
run('pttl', KEYS[1])
run('pexpire', KEYS[1], ARGV[1])
run('del', KEYS[1])
run('hset', KEYS[1], 'domain', '')
run('del', KEYS[1])
return refusal or 1
