"""Jobs, their plans, their events, and the keys under which they were submitted."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "jobs",
        sa.Column("number", sa.Integer(), autoincrement=True, nullable=False),
        sa.Column("id", sa.String(64), nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("document", sa.JSON(), nullable=False),
        sa.Column("events", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("number", name="pk_jobs"),
        sa.UniqueConstraint("id", name="uq_jobs_id"),
    )
    op.create_index("ix_jobs_state_number", "jobs", ["state", "number"])
    op.create_table(
        "plans",
        sa.Column("job", sa.String(64), sa.ForeignKey("jobs.id", name="fk_plans_job_jobs"), nullable=False),
        sa.Column("spec", sa.Text(), nullable=False),
        sa.Column("plan", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("job", name="pk_plans"),
    )
    op.create_table(
        "events",
        sa.Column("job", sa.String(64), sa.ForeignKey("jobs.id", name="fk_events_job_jobs"), nullable=False),
        sa.Column("seq", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("document", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("job", "seq", name="pk_events"),
    )
    op.create_table(
        "submissions",
        sa.Column("key", sa.String(255), nullable=False),
        sa.Column("digest", sa.String(64), nullable=False),
        sa.Column("job", sa.String(64), sa.ForeignKey("jobs.id", name="fk_submissions_job_jobs"), nullable=False),
        sa.PrimaryKeyConstraint("key", name="pk_submissions"),
    )


def downgrade() -> None:
    op.drop_table("submissions")
    op.drop_table("events")
    op.drop_table("plans")
    op.drop_index("ix_jobs_state_number", table_name="jobs")
    op.drop_table("jobs")
