"""The run file that `forgeyard init` writes: it runs as it is, and shows every key there is."""

from typing import Final

TEMPLATE: Final = """\
# A Forgeyard run: jobs, what each needs, and what it leaves behind.
#   forgeyard run check {file}               says what is wrong with this file, and where
#   forgeyard run submit {file} --watch      sends it with the files around it, and watches
name: "{name}"

# The whole run may take this long (default 24h).
timeout: 2h

# Jobs get the directory that is submitted, or else the files of a commit:
# source: {{git: https://example.org/app.git, ref: main}}

jobs:
  # Every job starts in an empty directory with a fresh copy of the source.
  check:
    steps:
      - name: what is here
        run: |
          ls -la
          uname -a
    # Cores and bytes that the job holds while it runs: 500m is half a core.
    resources: {{cpu: 500m, memory: 256Mi, disk: 256Mi}}

  build:
    # Runs once `check` has succeeded. `if: failure` or `if: always` would change that.
    needs: check
    env:
      GREETING: hello
    steps:
      - run: |
          mkdir -p dist
          printf '%s from %s\\n' "$GREETING" "$FORGEYARD_JOB_NAME" > dist/greeting.txt
    # Kept after the job, and unpacked at the same place for every job that needs it.
    outputs:
      greeting: dist/greeting.txt
    # Tried again only when the machinery is to blame, never when the command fails.
    retry:
      max-attempts: 3
      on: [infrastructure, runner_lost, input_fetch, output_upload]
      delay: 5s
    timeouts: {{queue: 1h, preparation: 5m, execution: 30m, upload: 5m}}

  report:
    needs: [check, build]
    if: always
    # Its failure would not fail the run.
    continue-on-error: true
    steps:
      - run: cat dist/greeting.txt

# More that a job may say:
#   priority: normal                # low, normal, high, release_critical, emergency
#   class: interactive              # interactive, normal, batch, release, emergency
#   exclusive: [staging]            # no two jobs that share a key run at once, in any run
#   preemption: restartable         # may be stopped and started again to make room
#   secrets: [NPM_TOKEN]            # names only; the agent's operator grants the values
#   test-reports: reports/*.xml     # JUnit files whose tests `run show` counts
#   caches:                         # kept between attempts while the key files are the same
#     pip: {{path: .cache/pip, key: [requirements.lock]}}
#   requires:                       # the job runs only where every one of these holds
#     platform: linux
#     arch: x86_64
#     os-version: ">=12"
#     toolchains: {{python: ">=3.11,<4"}}
#     labels: {{zone: a}}
#     trust: trusted_internal
"""


def run_file(name: str, *, file: str) -> str:
    """Write the commented run file of a project."""
    return TEMPLATE.format(name=name, file=file)
