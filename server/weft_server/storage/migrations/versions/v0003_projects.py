"""Users' tokens, the project of each job, and idempotency keys that each project has for itself."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

PROJECT = "default"
"""Of what there was before there were projects."""


def upgrade() -> None:
    op.create_table(
        "tokens",
        sa.Column("name", sa.String(128), nullable=False),
        sa.Column("digest", sa.String(64), nullable=False),
        sa.Column("scope", sa.String(16), nullable=False),
        sa.Column("project", sa.String(128), nullable=False),
        sa.Column("created_at", sa.String(40), nullable=False),
        sa.PrimaryKeyConstraint("name", name="pk_tokens"),
    )
    op.add_column("jobs", sa.Column("project", sa.String(128), nullable=False, server_default=PROJECT))
    op.create_index("ix_jobs_project_number", "jobs", ["project", "number"])
    op.create_table(
        "submissions_of_projects",
        sa.Column("project", sa.String(128), nullable=False),
        sa.Column("key", sa.String(255), nullable=False),
        sa.Column("digest", sa.String(64), nullable=False),
        sa.Column("job", sa.String(64), sa.ForeignKey("jobs.id", name="fk_submissions_job_jobs"), nullable=False),
        sa.PrimaryKeyConstraint("project", "key", name="pk_submissions"),
    )
    op.execute(
        "INSERT INTO submissions_of_projects (project, key, digest, job) "
        "SELECT 'default', key, digest, job FROM submissions"
    )
    op.drop_table("submissions")
    op.rename_table("submissions_of_projects", "submissions")


def downgrade() -> None:
    op.create_table(
        "submissions_of_all",
        sa.Column("key", sa.String(255), nullable=False),
        sa.Column("digest", sa.String(64), nullable=False),
        sa.Column("job", sa.String(64), sa.ForeignKey("jobs.id", name="fk_submissions_job_jobs"), nullable=False),
        sa.PrimaryKeyConstraint("key", name="pk_submissions"),
    )
    op.execute("INSERT OR IGNORE INTO submissions_of_all (key, digest, job) SELECT key, digest, job FROM submissions")
    op.drop_table("submissions")
    op.rename_table("submissions_of_all", "submissions")
    op.drop_index("ix_jobs_project_number", table_name="jobs")
    op.drop_column("jobs", "project")
    op.drop_table("tokens")
