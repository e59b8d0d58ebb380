-- settle_unlock: the end of settle_locked.lua, after the function settle.
end

local answer = settle()
if ours and (answer[1] == 'settled' or answer[1] == 'repaired') then redis.call('DEL', lock) end
return answer
