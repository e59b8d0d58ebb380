-- clock: the server's time, and the packed form of a time. Every script except open is
-- loaded with this file in front.

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
