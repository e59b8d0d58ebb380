-- settle_locked: settles as settle.lua does, and gives the lock back if the settlement stands. clock.lua
-- is in front of it. settle.lua and what it needs follow, as the function settle, and settle_unlock.lua.
--
-- KEYS as in settle.lua, but 7 the lock
-- ARGV as in settle.lua, but 21 the owner of the lock
-- Returns what settle.lua returns. Without the lock, the lease does not count as trusted.
local lock = KEYS[7]
local ours = redis.call('GETRANGE', lock, '0', '31') == ARGV[21]
KEYS[7] = nil
if not ours and ARGV[12] == 'trusted' then ARGV[12] = 'untrusted' end

local function settle()
