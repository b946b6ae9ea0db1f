-- Who may run a job: every move of a job between its three places, each one atomic call.
--
-- A job id is in exactly one place at any moment:
--   queued    in one list rq:queue:<queue>
--   claimed   in the sorted set h3:leases, until a time in milliseconds of this server's clock
--   terminal  in neither; its hash says how it ended (h3_outcome)
-- RQ's own records (status, registries, executions) are written beside, so that its tools show the truth. RQ's registry
-- of running jobs gets scores in the far future: its readers would fail a job whose score has passed.
--
-- A script is not rolled back. Full memory refuses it at its first write or not at all; a key of a wrong type would end
-- it half way. So a job's places are looked at before the first write, and what is not one is written by `note`, which
-- goes on.
--
-- ARGV[1] names the function, the rest are its arguments. Keys are made here: a Redis Cluster is not supported.

local LEASES, DEAD, QUARANTINE, BEACON, WAKE = 'h3:leases', 'h3:dead', 'h3:quarantine', 'h3:beacon', 'h3:wake'
local PAUSED = 'h3:paused' -- names of queues, of which nothing is taken
local WEBHOOKS, MOST_WEBHOOKS = 'h3:webhooks', 100000 -- ends of jobs that somebody wants to be called for
local SUBMITTED, OPEN = 'h3:submitted', 'h3:open:' -- all jobs by the time of their submit; those of an owner that have not ended
local NEVER = 4102444800 -- 2100-01-01
local RECORD_TTL_S = 30 * 24 * 3600
local LISTED_S = 2 * RECORD_TTL_S -- since its submit; the record of one that ended may be gone before
local MOST_FATAL, MOST_INTERRUPTIONS = 3, 20
local MOST_EXPIRED = 100 -- of one call, which blocks the server
local ENDED = {finished = true, failed = true, canceled = true, stopped = true}

local function now_ms()
  local time = redis.call('TIME')
  return time[1] * 1000 + math.floor(time[2] / 1000)
end

local function iso(ms)
  -- RQ's form of a time. Days to a date: http://howardhinnant.github.io/date_algorithms.html, civil_from_days.
  local z = math.floor(ms / 86400000) + 719468
  local era = math.floor(z / 146097)
  local doe = z - era * 146097
  local yoe = math.floor((doe - math.floor(doe / 1460) + math.floor(doe / 36524) - math.floor(doe / 146096)) / 365)
  local doy = doe - (365 * yoe + math.floor(yoe / 4) - math.floor(yoe / 100))
  local mp = math.floor((5 * doy + 2) / 153)
  local day, month = doy - math.floor((153 * mp + 2) / 5) + 1, mp < 10 and mp + 3 or mp - 9
  local year = yoe + era * 400 + (month <= 2 and 1 or 0)
  local s = math.floor(ms / 1000) % 86400
  return string.format('%04d-%02d-%02dT%02d:%02d:%02d.%03d000Z', year, month, day, math.floor(s / 3600),
    math.floor(s / 60) % 60, s % 60, ms % 1000)
end

local function job_key(id) return 'rq:job:' .. id end
local function queue_key(queue) return 'rq:queue:' .. queue end
local function losses_key(id) return 'h3:losses:' .. id end
local function orders_key(worker) return 'h3:orders:' .. worker end
local function get(id, field) return redis.call('HGET', job_key(id), field) end
local function origin(id) return get(id, 'origin') or 'default' end
local function set(id, ...) redis.call('HSET', job_key(id), ...) end
local function note(...) return redis.pcall(...) end
local function is_hash(key) return redis.call('TYPE', key).ok == 'hash' end

-- A counter. Whoever can write to this server can have put anything there, 'nan' too.
local function whole(text)
  local value = tonumber(text)
  return value and value >= 0 and value <= 1e12 and math.floor(value) or 0
end

local function count(id, field) return whole(get(id, field)) end

-- Where a queue's jobs wait. What somebody has put there that is no list is moved away.
local function queue_list(queue)
  local type = redis.call('TYPE', queue_key(queue)).ok
  if type ~= 'list' and type ~= 'none' then redis.call('RENAME', queue_key(queue), 'h3:not-a-queue:' .. queue) end
  return queue_key(queue)
end

local function add_one(id, field)
  local value = string.format('%d', count(id, field) + 1)
  set(id, field, value)
  return value
end

local function tell(id, event)
  local key = 'h3:events:' .. id
  note('XADD', key, '*', 'event', event)
  note('EXPIRE', key, RECORD_TTL_S)
end

local function holds(id, attempt)
  return is_hash(job_key(id)) and get(id, 'h3_lease') == attempt and redis.call('ZSCORE', LEASES, id)
end

local function clear_execution(queue, id, attempt)
  note('ZREM', 'rq:wip:' .. queue, id .. ':' .. attempt)
  note('DEL', 'rq:execution:' .. id .. ':' .. attempt, 'rq:executions:' .. id)
end

local function release(id, attempt)
  -- To the end of its lease at most: nobody knows of more work, and it may be taken back much later.
  local until_ms = math.min(now_ms(), tonumber(redis.call('ZSCORE', LEASES, id)) or 0)
  redis.call('ZREM', LEASES, id)
  local claimed_ms = tonumber(get(id, 'h3_claimed_ms'))
  local busy_ms = claimed_ms and math.max(0, until_ms - claimed_ms) or 0
  set(id, 'h3_released', attempt, 'h3_busy_ms', string.format('%.0f', count(id, 'h3_busy_ms') + whole(busy_ms)))
  redis.call('HDEL', job_key(id), 'h3_lease', 'h3_nonce', 'h3_cancel', 'h3_claimed_ms')
  clear_execution(origin(id), id, attempt)
end

local function push_first(id)
  set(id, 'status', 'queued')
  redis.call('LPUSH', queue_list(origin(id)), id)
  note('PUBLISH', WAKE, id)
end

local function expire(id)
  for _, key in ipairs({job_key(id), 'h3:events:' .. id, losses_key(id), 'rq:results:' .. id}) do
    note('EXPIRE', key, RECORD_TTL_S)
  end
end

-- Among all, and among those of its owner. One whose record is gone stays: whoever reads on from there finds their place.
-- By microseconds: of one millisecond there may be several.
local function enlist(id, owner)
  local time = redis.call('TIME')
  for _, list in ipairs(owner ~= '' and {SUBMITTED, SUBMITTED .. ':' .. owner} or {SUBMITTED}) do
    note('ZADD', list, string.format('%d%06d', time[1], time[2]), id)
    note('ZREMRANGEBYSCORE', list, '-inf', string.format('%d%06d', time[1] - LISTED_S, time[2]))
  end
end

-- Whether a job is still to end, for its owner's count.
local function note_open(id, is_open)
  local owner = get(id, 'h3_owner')
  if owner then note(is_open and 'SADD' or 'SREM', OPEN .. owner, id) end
end

-- Also as RQ's own tools say it, which know nothing of an outcome.
local function has_ended(id)
  local outcome, status = get(id, 'h3_outcome'), get(id, 'status')
  local is_over = outcome and (outcome == 'finished' or status ~= 'queued') or not outcome and ENDED[status]
  return is_over and not redis.call('ZSCORE', LEASES, id)
end

-- How many jobs of an owner have not ended. Those whose end was told by somebody else, or whose record was deleted, are
-- found when it matters.
local function count_open(owner, most)
  local open = note('SCARD', OPEN .. owner)
  if type(open) ~= 'number' or open < most then return 0 end
  for _, id in ipairs(redis.call('SMEMBERS', OPEN .. owner)) do
    if not is_hash(job_key(id)) or has_ended(id) then redis.call('SREM', OPEN .. owner, id) end
  end
  return redis.call('SCARD', OPEN .. owner)
end

-- All that is known of a job that has ended.
local function forget(id)
  if is_hash(job_key(id)) then
    for _, registry in ipairs({'finished', 'failed', 'canceled'}) do
      note('ZREM', 'rq:' .. registry .. ':' .. origin(id), id)
    end
    note_open(id, false)
  end
  note('ZREM', DEAD, id)
  note('HDEL', QUARANTINE, id)
  redis.call('DEL', job_key(id), losses_key(id), 'rq:results:' .. id, 'h3:events:' .. id)
end

-- `record`: RQ's Result as field-value pairs, or nothing.
local function conclude(id, outcome, status, registry, event, record)
  local now = now_ms()
  redis.call('HDEL', job_key(id), 'h3_lease') -- of an attempt whose lease somebody has deleted
  set(id, 'h3_outcome', outcome, 'status', status, 'ended_at', iso(now), 'h3_ended_ms', string.format('%.0f', now))
  note('ZADD', 'rq:' .. registry .. ':' .. origin(id), now / 1000 + RECORD_TTL_S, id)
  if #record > 0 then
    note('XADD', 'rq:results:' .. id, 'MAXLEN', 10, '*', unpack(record))
  end
  if event ~= '' then tell(id, event) end
  local webhook = get(id, 'h3_webhook')
  if webhook then
    note('XADD', WEBHOOKS, 'MAXLEN', '~', MOST_WEBHOOKS, '*', 'job', id, 'url', webhook, 'outcome', outcome)
  end
  note_open(id, false)
  expire(id)
end

local function is_paused(queue)
  return redis.call('TYPE', PAUSED).ok == 'set' and redis.call('SISMEMBER', PAUSED, queue) == 1
end

-- Whether the end of the attempt that holds the lease is asked for. RQ's tools say it in the status.
local function is_canceled(id, attempt)
  return get(id, 'h3_cancel') == attempt or get(id, 'status') == 'canceled' or get(id, 'status') == 'stopped'
end

local function cancel_event(attempt)
  return string.format('{"kind": "canceled", "attempt": %d}', whole(attempt))
end

local function dead_event(id, attempt)
  local losses = note('LRANGE', losses_key(id), 0, -1) -- JSON as it is
  return string.format('{"kind": "dead", "attempt": %d, "losses": [%s]}', whole(attempt), table.concat(losses, ', '))
end

-- An attempt has ended without a result. `kind`: 'drained' counts as nothing, 'fatal' and 'interrupted' each have a limit.
local function lose(id, attempt, reason, kind)
  local worker = get(id, 'worker_name') or ''
  local was_canceled = is_canceled(id, attempt)
  release(id, attempt)
  if was_canceled then
    conclude(id, 'canceled', 'canceled', 'canceled', cancel_event(attempt), {})
    return 'canceled'
  end
  if kind ~= 'drained' then
    note('RPUSH', losses_key(id),
      cjson.encode({attempt = whole(attempt), worker = worker, kind = kind, reason = reason}))
  end
  local is_dead = kind == 'fatal' and tonumber(add_one(id, 'h3_fatal')) >= MOST_FATAL
    or kind == 'interrupted' and tonumber(add_one(id, 'h3_interruptions')) >= MOST_INTERRUPTIONS
  if is_dead then
    note('ZADD', DEAD, now_ms(), id)
    conclude(id, 'dead', 'failed', 'failed', dead_event(id, attempt), {})
    return 'dead'
  end
  push_first(id)
  tell(id, cjson.encode({kind = 'attempt_lost', attempt = whole(attempt), reason = reason, charge = kind}))
  return 'queued'
end

local function rest(arguments, first)
  local found = {}
  for i = first, #arguments do found[#found + 1] = arguments[i] end
  return found
end

local commands = {}

-- Queue a job, once for each key. `owner` may be ''; one that has `most` jobs that have not ended gets no more: 'full'.
-- The rest is the job's hash as RQ writes it.
function commands.submit(id, queue, key, digest, owner, most, event, ...)
  if redis.call('EXISTS', job_key(id)) == 1 then return {'queued', id} end -- the answer was lost on its way
  local list = queue_list(queue)
  if key ~= '' then
    local known = redis.call('HMGET', key, 'job', 'digest')
    if known[1] and redis.call('EXISTS', job_key(known[1])) == 1 and not get(known[1], 'h3_hidden') then
      redis.call('EXPIRE', key, RECORD_TTL_S)
      return {known[2] == digest and 'known' or 'conflict', known[1]}
    end
  end
  if owner ~= '' and count_open(owner, tonumber(most)) >= tonumber(most) then return {'full', ''} end
  if key ~= '' then
    redis.call('HSET', key, 'job', id, 'digest', digest)
    redis.call('EXPIRE', key, RECORD_TTL_S)
  end
  local now = now_ms()
  set(id, ...)
  set(id, 'status', 'queued', 'origin', queue, 'enqueued_at', iso(now), 'h3_queued_ms', string.format('%.0f', now))
  if owner ~= '' then set(id, 'h3_owner', owner) end
  note('SADD', 'rq:queues', list)
  enlist(id, owner)
  note_open(id, true)
  tell(id, event)
  redis.call('RPUSH', list, id)
  note('PUBLISH', WAKE, id)
  return {'queued', id}
end

-- What waits: for each queue an array of {id, problem, call, milliseconds waited}, from `first`, at most `most`.
function commands.peek(first, most, most_bytes, ...)
  local found, now = {}, now_ms()
  for i, queue in ipairs({...}) do
    found[i] = {}
    local ids = is_paused(queue) and {} or redis.call('LRANGE', queue_list(queue), first, first + most - 1)
    for j, id in ipairs(ids) do
      if #id > 200 then -- put away here: nobody is to read all of it
        local shown = string.sub(id, 1, 200)
        redis.call('LREM', queue_key(queue), 0, id)
        note('HSET', QUARANTINE, shown, 'the id has ' .. #id .. ' bytes')
        found[i][j] = {shown, 'the id has ' .. #id .. ' bytes', '', 0}
      elseif not is_hash(job_key(id)) then
        found[i][j] = {id, 'the job has no record', '', 0}
      elseif redis.call('HSTRLEN', job_key(id), 'data') > tonumber(most_bytes) then
        found[i][j] = {id, 'the call has ' .. redis.call('HSTRLEN', job_key(id), 'data') .. ' bytes', '', 0}
      else
        local ms = tonumber(get(id, 'h3_queued_ms') or now)
        found[i][j] = {id, '', get(id, 'data') or '', ms and math.floor(now - ms) or 0}
      end
    end
  end
  return found
end

-- Take a queued job: its attempt number and what earlier attempts have kept; or why there is nothing to take.
function commands.claim(queue, id, worker, nonce, lease_ms)
  local is_leased = redis.call('ZSCORE', LEASES, id)
  if is_paused(queue) and not (is_leased and get(id, 'h3_nonce') == nonce) then return {'gone'} end
  -- One step, where LMOVE to a list of claimed jobs would be the first of two: no process can die in between.
  local removed = redis.call('LREM', queue_list(queue), 0, id)
  if not is_hash(job_key(id)) then return {'gone'} end
  if is_leased and get(id, 'h3_nonce') == nonce then -- the answer to our first try was lost on its way
    return {'claimed', get(id, 'h3_lease'), get(id, 'h3_kept') or ''}
  end
  if is_leased or removed == 0 then return {'gone'} end -- queued a second time while it runs; somebody was first
  local outcome = get(id, 'h3_outcome')
  if outcome == 'finished' or outcome and get(id, 'status') ~= 'queued' then
    if outcome == 'finished' then set(id, 'status', 'finished') end
    return {'gone'} -- queued again after its end; `rq requeue` of a failed one is meant
  end
  if not outcome and ENDED[get(id, 'status')] then return {'gone'} end -- as RQ's own `cancel` leaves it
  local now = now_ms()
  redis.call('ZADD', LEASES, now + lease_ms, id)
  if outcome then
    note('ZREM', DEAD, id)
    note('HDEL', QUARANTINE, id)
    note_open(id, true)
    redis.call('DEL', losses_key(id))
    redis.call('HDEL', job_key(id), 'h3_fatal', 'h3_interruptions')
  end
  local attempt = add_one(id, 'h3_attempts')
  redis.call('HDEL', job_key(id), 'h3_outcome', 'h3_makes_way', 'ended_at', 'h3_ended_ms')
  set(id, 'status', 'started', 'origin', queue, 'started_at', iso(now), 'last_heartbeat', iso(now), 'worker_name', worker,
    'h3_lease', attempt, 'h3_nonce', nonce, 'h3_began', count(id, 'h3_mark'), 'h3_claimed_ms', string.format('%.0f', now))
  redis.call('PERSIST', job_key(id))
  note('ZADD', 'rq:wip:' .. queue, NEVER, id .. ':' .. attempt)
  note('HSET', 'rq:execution:' .. id .. ':' .. attempt, 'id', attempt, 'created_at', now / 1000, 'last_heartbeat',
    now / 1000, 'worker_name', worker)
  note('ZADD', 'rq:executions:' .. id, NEVER, attempt)
  tell(id, cjson.encode({kind = 'started', attempt = whole(attempt), worker = worker}))
  return {'claimed', attempt, get(id, 'h3_kept') or ''}
end

-- Keep a lease. 0 if it is lost.
function commands.beat(id, attempt, lease_ms)
  if not holds(id, attempt) then return 0 end
  local now = now_ms()
  redis.call('ZADD', LEASES, now + lease_ms, id)
  note('HSET', 'rq:execution:' .. id .. ':' .. attempt, 'last_heartbeat', now / 1000)
  set(id, 'last_heartbeat', iso(now))
  return 1
end

-- News of an attempt; 0 if it no longer holds the lease.
function commands.tell(id, attempt, ...)
  if not holds(id, attempt) then return 0 end
  for _, event in ipairs({...}) do
    redis.call('XADD', 'h3:events:' .. id, '*', 'event', event) -- not by `note`: full memory is to be heard of
    note('EXPIRE', 'h3:events:' .. id, RECORD_TTL_S)
  end
  return 1
end

-- A last beat, before the result is committed: an attempt that dies from here on has moved the job forward.
function commands.seal(id, attempt, lease_ms)
  if commands.beat(id, attempt, lease_ms) == 0 then return 0 end
  set(id, 'h3_mark', string.format('%d', math.max(count(id, 'h3_mark'), count(id, 'h3_began') + 1)))
  return 1
end

-- Something to go on from is in the store. `mark` grows with what need not be done again.
function commands.keep(id, attempt, mark, kept, event)
  if not holds(id, attempt) then return 0 end
  set(id, 'h3_mark', mark, 'h3_kept', kept)
  if event ~= '' then tell(id, event) end
  return 1
end

-- End an attempt without a result: 'queued', 'dead', or 'lost' if it was not ours to end.
function commands.hand_back(id, attempt, kind, reason)
  if not holds(id, attempt) then return 'lost' end
  return lose(id, attempt, reason, kind)
end

-- End a job. Safe to repeat: an answer can be lost on its way.
function commands.finish(id, attempt, outcome, status, registry, event, ...)
  if not is_hash(job_key(id)) then return 'lost' end
  if get(id, 'h3_outcome') == outcome and get(id, 'h3_released') == attempt then return outcome end
  if not holds(id, attempt) then return 'lost' end
  release(id, attempt)
  conclude(id, outcome, status, registry, event, {...})
  return outcome
end

-- Ask for a job's end, or for that of one attempt. 'canceled' if it waited; 'asked' if its attempt runs, which stops as
-- soon as it can; else why not: 'unknown', 'other' and the attempt that runs, if any, 'ended' and how.
function commands.cancel(id, attempt)
  if not is_hash(job_key(id)) then return {'unknown', ''} end
  local is_leased = redis.call('ZSCORE', LEASES, id)
  local running = is_leased and get(id, 'h3_lease') or ''
  if not is_leased then
    local outcome = get(id, 'h3_outcome')
    if outcome and (outcome == 'finished' or get(id, 'status') ~= 'queued') then return {'ended', outcome} end
  end
  if attempt ~= '' and attempt ~= running then return {'other', running} end
  if is_leased then
    set(id, 'h3_cancel', running)
    return {'asked', running}
  end
  redis.call('LREM', queue_list(origin(id)), 0, id)
  conclude(id, 'canceled', 'canceled', 'canceled', cancel_event(get(id, 'h3_attempts')), {})
  return {'canceled', ''}
end

-- What is asked of a worker, and of the attempt it runs ('' for none): {0 or 1: to take nothing, to leave, to stop the attempt}
-- Each name is one that the worker goes by.
function commands.orders(id, attempt, ...)
  local pause, leave = 0, 0
  for _, name in ipairs({...}) do
    if redis.call('TYPE', orders_key(name)).ok == 'hash' then
      local orders = redis.call('HMGET', orders_key(name), 'pause', 'drain')
      if orders[1] then pause = 1 end
      if orders[2] then leave = 1 end
    end
  end
  local cancel = id ~= '' and holds(id, attempt) and is_canceled(id, attempt) and 1 or 0
  return {pause, leave, cancel}
end

-- Make way for a waiting job: 1 for one worker, once.
function commands.make_way(id, worker)
  if not is_hash(job_key(id)) or get(id, 'status') ~= 'queued' then return 0 end
  return redis.call('HSETNX', job_key(id), 'h3_makes_way', worker)
end

-- End a queued job that is no longer wanted. Never touches one that runs.
function commands.give_up(queue, id, event, ...)
  if redis.call('ZSCORE', LEASES, id) or not is_hash(job_key(id)) then return 0 end
  if redis.call('LREM', queue_list(queue), 0, id) == 0 then return 0 end
  set(id, 'origin', queue)
  conclude(id, 'failed', 'failed', 'failed', event, {...})
  return 1
end

-- Put away what is no render job, with the reason. Never touches a job that runs.
function commands.quarantine(queue, id, reason, event, ...)
  local is_leased = #id <= 200 and redis.call('ZSCORE', LEASES, id)
  redis.call('LREM', queue_list(queue), 0, id)
  if is_leased then return 0 end
  note('HSET', QUARANTINE, string.sub(id, 1, 200), reason)
  note('EXPIRE', QUARANTINE, RECORD_TTL_S)
  if #id <= 200 and is_hash(job_key(id)) and get(id, 'h3_outcome') ~= 'finished' then
    set(id, 'origin', queue)
    conclude(id, 'failed', 'failed', 'failed', event, {...})
  end
  return 1
end

-- After a silence nobody can know who is alive, so nothing is taken from anybody for one lease.
local function quiet_ms(lease_ms, longest_gap_ms, run_id)
  local now = now_ms()
  local seen = redis.call('HMGET', BEACON, 'ms', 'run_id', 'quiet_until_ms')
  local quiet_until = math.min(tonumber(seen[3]) or 0, now + lease_ms)
  if seen[2] ~= run_id or now - (tonumber(seen[1]) or 0) > tonumber(longest_gap_ms) then
    quiet_until = now + lease_ms
  end
  redis.call('HSET', BEACON, 'ms', string.format('%.0f', now), 'run_id', run_id, 'quiet_until_ms',
    string.format('%.0f', quiet_until))
  return math.max(0, quiet_until - now)
end

-- Take jobs back whose lease has run out. {milliseconds to wait, ids queued again, ids that are dead}
function commands.reap(lease_ms, longest_gap_ms, run_id)
  local quiet = quiet_ms(lease_ms, longest_gap_ms, run_id)
  local queued, dead = {}, {}
  if quiet > 0 then return {math.ceil(quiet), queued, dead} end
  for _, id in ipairs(redis.call('ZRANGEBYSCORE', LEASES, '-inf', now_ms(), 'LIMIT', 0, MOST_EXPIRED)) do
    if is_hash(job_key(id)) then
      local kind = count(id, 'h3_mark') > count(id, 'h3_began') and 'interrupted' or 'fatal'
      local reason = 'the lease ran out: ' .. (get(id, 'worker_name') or 'its worker') .. ' is gone'
      local place = lose(id, get(id, 'h3_lease') or '0', reason, kind)
      if place ~= 'canceled' then table.insert(place == 'dead' and dead or queued, id) end
    else
      redis.call('ZREM', LEASES, id) -- its record was deleted
    end
  end
  return {0, queued, dead}
end

-- RQ's sets of workers keep those whose records have expired.
local function forget_dead_workers(set_key)
  for _, worker in ipairs(note('SMEMBERS', set_key)) do
    if redis.call('EXISTS', worker) == 0 then redis.call('SREM', set_key, worker) end
  end
end

-- Remove RQ's records of runs that are over; mend a job that one of RQ's readers took for abandoned. How many.
function commands.sweep(...)
  local mended = 0
  forget_dead_workers('rq:workers')
  for _, queue in ipairs({...}) do
    forget_dead_workers('rq:workers:' .. queue)
    -- Where a worker of RQ keeps what it has taken and not begun.
    for _, id in ipairs(note('LRANGE', queue_key(queue) .. ':intermediate', 0, MOST_EXPIRED)) do
      redis.call('LREM', queue_key(queue) .. ':intermediate', 0, id)
      mended = mended + 1
      if is_hash(job_key(id)) and get(id, 'status') == 'queued' and (get(id, 'origin') or queue) == queue
        and get(id, 'h3_outcome') ~= 'finished'
        and not redis.call('ZSCORE', LEASES, id) and not redis.call('LPOS', queue_list(queue), id) then
        set(id, 'origin', queue)
        push_first(id)
      end
    end
    for _, entry in ipairs(note('ZRANGE', 'rq:wip:' .. queue, 0, -1)) do
      local id, execution = string.match(entry, '^(.*):(.*)$')
      if not id or not holds(id, execution) then
        redis.call('ZREM', 'rq:wip:' .. queue, entry)
        mended = mended + 1
      end
    end
    for _, id in ipairs(note('ZREVRANGE', 'rq:failed:' .. queue, 0, MOST_EXPIRED)) do
      if is_hash(job_key(id)) and get(id, 'h3_outcome') == 'finished' then
        redis.call('ZREM', 'rq:failed:' .. queue, id)
        set(id, 'status', 'finished')
        mended = mended + 1
      end
    end
  end
  return mended
end

-- Give a job that has failed its attempts back: 1. 0 if it has not failed; 2 if its owner has `most` open ones.
function commands.retry_dead(id, most)
  if not is_hash(job_key(id)) then return 0 end
  local outcome, owner = get(id, 'h3_outcome'), get(id, 'h3_owner')
  if outcome ~= 'dead' and outcome ~= 'failed' then return 0 end
  if most and owner and count_open(owner, tonumber(most)) >= tonumber(most) then return 2 end
  note('ZREM', DEAD, id)
  note('HDEL', QUARANTINE, id)
  redis.call('HDEL', job_key(id), 'h3_outcome', 'h3_fatal', 'h3_interruptions', 'ended_at', 'h3_ended_ms')
  redis.call('DEL', losses_key(id))
  note('ZREM', 'rq:failed:' .. origin(id), id)
  redis.call('PERSIST', job_key(id))
  note_open(id, true)
  push_first(id)
  tell(id, cjson.encode({kind = 'retried'}))
  return 1
end

-- Forget a dead job; what it has kept in the store stays.
function commands.drop_dead(id)
  if redis.call('HDEL', QUARANTINE, id) + redis.call('ZREM', DEAD, id) == 0 then return 0 end
  forget(id)
  return 1
end

-- How many jobs of an owner have not ended, as far as there may be `most` or more.
function commands.count_open(owner, most) return count_open(owner, tonumber(most)) end

-- Nobody is to be shown a job again. 'dropped' if it had ended; 'hidden' if it runs, until its attempt stops; 'queued'
-- if it waits, and is left alone.
function commands.drop(id)
  if not is_hash(job_key(id)) then return 'dropped' end
  if redis.call('ZSCORE', LEASES, id) then
    set(id, 'h3_hidden', 1)
    return 'hidden'
  end
  if not has_ended(id) then return 'queued' end
  forget(id)
  return 'dropped'
end

return commands[ARGV[1]](unpack(rest(ARGV, 2)))
