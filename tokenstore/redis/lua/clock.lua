-- clock: the server's time, the packed form of a time, and the evidence of what the clock
-- did. Every script except open and mark is loaded with this file in front.

local byte, sub, char, floor = string.byte, string.sub, string.char, math.floor

-- The server's time in ms. Redis replicates the writes of a script and not the script.
local t = redis.call('TIME')
local now = t[1] * 1000 + floor(t[2] / 1000)

-- A number of 48 bits as six bytes. Arithmetic is cheaper here than calls of floor.
local function p48(n)
  local f = n % 256
  n = (n - f) / 256
  local e = n % 256
  n = (n - e) / 256
  local d = n % 256
  n = (n - d) / 256
  local c = n % 256
  n = (n - c) / 256
  local b = n % 256
  return char((n - b) / 256, b, c, d, e, f)
end

local function u48(s, i)
  local a, b, c, d, e, f = byte(s, i, i + 5)
  return ((((a * 256 + b) * 256 + c) * 256 + d) * 256 + e) * 256 + f
end

-- The evidence is a text of 18 bytes without a time to live:
--
--    1-6   highest   the highest time of the server that a script has seen
--    7-12  wall      the wall clock of that script's caller
--   13-18  canary    when the canary expires
--
-- A call carries a reading of its caller's clocks, in 12 bytes:
--
--    1-6   wall      its wall clock
--    7-12  expected  the server's time that it expects by its lease clock, or 0
--
-- The canary is a key that expires. Redis deletes it no later than any record whose time
-- is over because of a jump, so a jump that no script saw leaves a trace too.
local JUMP = 60000 -- a clock that moves further than another one by less has not jumped
local RENEWAL = 10000 -- the least time between two writes of the evidence
local CANARY = 600000 -- how long the canary lives
local BRIDGED = 604800000 -- how far the clock may go back before the evidence follows it

-- The time that the server should have by the caller's wall clock.
local function by_wall(evidence, reading) return u48(reading, 1) + u48(evidence, 1) - u48(evidence, 7) end

-- Whether the clock has jumped ahead since the evidence was written. What a script takes for
-- expired may be due then. The caller has to decide, because the call may have come late.
local function jumped(evidence, canary, reading)
  if not evidence then return false end
  if not canary and now < u48(evidence, 13) - JUMP and by_wall(evidence, reading) <= now + JUMP then return true end
  return now > u48(evidence, 1) + JUMP and now > by_wall(evidence, reading) + JUMP and now > u48(reading, 7) + JUMP
end

-- Writes the evidence anew, if it is old.
local function renew(evidence, reading)
  if evidence and now < u48(evidence, 1) + RENEWAL and now > u48(evidence, 1) - BRIDGED then return end
  local canary = now + CANARY
  redis.call('SET', KEYS[5], p48(now) .. sub(reading, 1, 6) .. p48(canary))
  redis.call('SET', KEYS[6], '', 'PXAT', canary)
end

-- The time from which a time to live counts. While the clock is behind what it was, that is
-- the time that it should be. When the clock is right again, nothing is forgotten early.
local function start_of_life(evidence, reading)
  if not evidence then return now end
  local highest = u48(evidence, 1)
  if now >= highest or now < highest - BRIDGED then return now end
  return math.max(highest, math.min(by_wall(evidence, reading), highest + BRIDGED))
end
