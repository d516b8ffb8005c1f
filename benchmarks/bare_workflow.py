"""The reference itself, alone in its module: the sandbox imports that anew for each workflow."""

from datetime import timedelta

from temporalio import activity, workflow


@activity.defn(name="bare.act")
async def act(number: int) -> int:
    """Do nothing."""
    return number


@workflow.defn(name="Bare")
class Bare:
    """Run one activity and nothing else."""

    @workflow.run
    async def run(self, number: int) -> int:
        """Run it."""
        return await workflow.execute_activity(
            act, number, start_to_close_timeout=timedelta(seconds=5)
        )
