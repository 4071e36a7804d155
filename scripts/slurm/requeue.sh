# shellcheck shell=bash
# For batch scripts whose job may be stopped and started again: run_or_requeue runs a trainer, hands the signals of the
# batch system to it, and has the job queued again when there is more to do. Sourced; see preemptible.sbatch.
#
#   the trainer ends with    the job
#   0                        is done
#   2                        ends with 2: options or input are wrong, and a second try would not help
#   75 (saved after USR1 or TERM), 1, or killed by a signal
#                            is queued again, and the recipe resumes from its newest checkpoint (-y 1); unless it
#                            was cancelled, or three attempts in a row brought no new checkpoint
readonly ATTEMPTS_WITHOUT_PROGRESS=3
STEP=(--ntasks=1) # options of srun; a script may set others

# Without $(date): bash 5.2 fails when a trap runs while it parses a command substitution.
say() { printf '%(%F %T)T requeue: %s\n' -1 "$*" >&2; }

# The newest checkpoint that is complete: its manifest is written last.
newest_checkpoint() {
    local newest
    newest=$(compgen -G "$1/step_*/trainer.json" | sort | tail -n 1) || true # there is none yet
    newest=${newest%/trainer.json}
    echo "${newest##*/}"
}

# DIR/attempts holds the number of starts since the checkpoint that it names was the newest one. It is written before
# the trainer starts, so that a node that dies counts as well. A job that is submitted anew begins to count anew.
count_attempt() {
    local out=$1 newest=$2 attempts=0 at=
    if [[ -s $out/attempts ]]; then
        read -r attempts at <"$out/attempts" || true # its line may be cut off
        if [[ ! $attempts =~ ^[0-9]+$ || ! $at =~ ^(step_[0-9]*)?$ ]]; then
            say "$out/attempts was not written by this script; move it away, or set another OUT"
            return 1
        fi
    fi
    ((${SLURM_RESTART_COUNT:-0} > 0)) && [[ $at == "$newest" ]] || attempts=0
    echo "$((attempts + 1)) $newest" >"$out/attempts"
    echo "$((attempts + 1))"
}

# A signal for the trainer; kept for it when it has not been started yet. A trainer that has just ended needs it no more.
# The traps are set when this file is read: a batch shell without them would be ended by the signal. What was started is
# a copy of this shell until it is srun, and such a copy takes a signal for its own and forgets it. srun gets USR1 for
# both: it passes USR1 on, but takes TERM as an order to kill its tasks.
trainer='' asked='' woken=''
name_of() { cat "/proc/$1/comm" 2>/dev/null || true; }
pass_on() {
    asked=$1 woken=1
    local own tries=250
    [[ -n $trainer ]] || return 0
    own=$(name_of $$)
    while ((tries-- > 0)) && [[ $(name_of "$trainer") == "$own" ]]; do sleep 0.02; done
    kill -s USR1 "$trainer" 2>/dev/null || true
}
trap 'pass_on USR1' USR1
trap 'pass_on TERM' TERM

# Slurm itself is ending the job (COMPLETING): somebody cancelled it, or its time is up. Asking for it to be queued
# again would bring a cancelled job back. A job that is signalled, also one that is to be preempted, is RUNNING.
is_ending() {
    local state
    state=$(scontrol show job "$SLURM_JOB_ID" 2>/dev/null | grep -oE 'JobState=[A-Z_]+') || true
    [[ -n $state && $state != JobState=RUNNING ]]
}

# run_or_requeue OUT COMMAND...: COMMAND writes its checkpoints to OUT. Returns what the job should end with.
run_or_requeue() {
    local out=$1 code before now attempt
    shift
    mkdir -p "$out" || return 2
    before=$(newest_checkpoint "$out")
    attempt=$(count_attempt "$out" "$before") || return 1
    if ((attempt > ATTEMPTS_WITHOUT_PROGRESS)); then
        say "$ATTEMPTS_WITHOUT_PROGRESS attempts from ${before:-the beginning} brought no new checkpoint: giving up"
        return 1
    fi
    say "job $SLURM_JOB_ID, attempt $attempt from ${before:-the beginning}: $*"

    # A shell acts on a signal only between commands or in `wait`: so the trainer runs beside it. srun passes USR1
    # on to all tasks; and Slurm tells the steps that srun started, not this shell, that a job is preempted.
    srun "${STEP[@]}" "$@" &
    trainer=$!
    [[ -z $asked ]] || pass_on "$asked"
    woken=1
    while [[ $woken ]]; do # a signal ends the wait, not the trainer
        woken=
        wait "$trainer" && code=0 || code=$?
    done

    ((code != 0)) || rm -f "$out/attempts"
    if ((code == 0 || code == 2)); then
        say "the trainer ended with $code${asked:+ after $asked}"
        return "$code"
    fi
    now=$(newest_checkpoint "$out")
    say "the trainer ended with $code${asked:+ after $asked} at ${now:-the beginning}"
    if [[ $now == "$before" ]] && ((attempt >= ATTEMPTS_WITHOUT_PROGRESS)); then
        say "$attempt attempts from ${now:-the beginning} brought no new checkpoint: not queued again"
    elif is_ending; then
        say "the job is being ended (cancelled, or out of time): not queued again"
    elif scontrol requeue "$SLURM_JOB_ID"; then
        say "queued again"
    else
        say "scontrol requeue failed; resume with the same sbatch command"
    fi
    return "$code"
}
