"""What a server that starts again goes on from: parts of what it knew of jobs, its agents, how often it was started."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "parts",
        sa.Column("job", sa.String(64), sa.ForeignKey("jobs.id", name="fk_parts_job_jobs"), nullable=False),
        sa.Column("part", sa.String(128), nullable=False),
        sa.Column("document", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("job", "part", name="pk_parts"),
    )
    op.create_table(
        "agents",
        sa.Column("id", sa.String(64), nullable=False),
        sa.Column("document", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_agents"),
    )
    op.create_table(
        "starts",
        sa.Column("number", sa.Integer(), autoincrement=True, nullable=False),
        sa.Column("at", sa.String(40), nullable=False),
        sa.PrimaryKeyConstraint("number", name="pk_starts"),
    )


def downgrade() -> None:
    op.drop_table("starts")
    op.drop_table("agents")
    op.drop_table("parts")
