-- What a collector of old pieces asks of Redis, each question one atomic call: where a job is, and what stands there for
-- a job whose record is gone. Of a job that has a record it changes nothing.
--
-- ARGV[1] names the function, the rest are its arguments. Keys are made here, as in lease.lua, whose `claim` says what
-- may still run.

local LEASES, DEAD, QUARANTINE = 'h3:leases', 'h3:dead', 'h3:quarantine'
local ENDED = {finished = true, failed = true, canceled = true, stopped = true}

local function job_key(id) return 'rq:job:' .. id end
local function has_record(id) return redis.call('EXISTS', job_key(id)) == 1 end

local function is_listed(id)
  for _, queue in ipairs(redis.call('SMEMBERS', 'rq:queues')) do
    if redis.call('TYPE', queue).ok == 'list' and redis.call('LPOS', queue, id) then return true end
  end
  return false
end

-- The job that a key was written for, if it is a key of ours.
local function owner(key)
  if string.match(key, '^h3:key:') then
    return redis.call('TYPE', key).ok == 'hash' and redis.call('HGET', key, 'job')
  end
  return string.match(key, '^h3:events:(.+)$') or string.match(key, '^h3:losses:(.+)$')
end

local function is_left(key)
  local id = redis.call('TTL', key) == -1 and owner(key)
  return id and not has_record(id)
end

local function rest(arguments, first)
  local found = {}
  for i = first, #arguments do found[#found + 1] = arguments[i] end
  return found
end

local commands = {}

-- {'queued'}, {'claimed'}, {'unknown'} or {'ended', how, when, attempts, what they have kept}
function commands.look(id)
  if redis.call('ZSCORE', LEASES, id) then return {'claimed'} end
  local type = redis.call('TYPE', job_key(id)).ok
  if type == 'none' then return {is_listed(id) and 'queued' or 'unknown'} end
  if type ~= 'hash' then return {'queued'} end -- nobody can say that it is over
  local read = redis.call('HMGET', job_key(id), 'h3_outcome', 'status', 'ended_at', 'h3_attempts', 'h3_kept')
  local outcome, status = read[1], read[2]
  if not outcome and ENDED[status] then outcome = status end -- as RQ's own `cancel` leaves it
  if not outcome or outcome ~= 'finished' and status == 'queued' then return {'queued'} end
  return {'ended', outcome, read[3] or '', read[4] or '', read[5] or ''}
end

-- Which of these keys would stay for ever, without a job.
function commands.left_keys(...)
  local found = {}
  for _, key in ipairs({...}) do
    if is_left(key) then found[#found + 1] = key end
  end
  return found
end

function commands.remove_keys(...)
  local removed = 0
  for _, key in ipairs({...}) do
    if is_left(key) then removed = removed + redis.call('DEL', key) end
  end
  return removed
end

-- Which of these jobs have no record.
function commands.left_jobs(...)
  local found = {}
  for _, id in ipairs({...}) do
    if not has_record(id) then found[#found + 1] = id end
  end
  return found
end

-- Take them off the lists of dead and quarantined jobs.
function commands.remove_jobs(...)
  local removed = 0
  for _, id in ipairs({...}) do
    if not has_record(id) then
      removed = removed + redis.call('ZREM', DEAD, id) + redis.call('HDEL', QUARANTINE, id)
    end
  end
  return removed
end

return commands[ARGV[1]](unpack(rest(ARGV, 2)))
