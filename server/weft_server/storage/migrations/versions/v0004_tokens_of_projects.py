"""Names of users' tokens are their project's: one project learns nothing of another's. Secrets of removed tokens."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    _rebuild("project", "name")
    op.create_table(
        "removed_tokens",
        sa.Column("digest", sa.String(64), nullable=False),
        sa.PrimaryKeyConstraint("digest", name="pk_removed_tokens"),
    )


def downgrade() -> None:
    """Of tokens of one name the first project's stays."""
    op.drop_table("removed_tokens")
    _rebuild("name")


def _rebuild(*key: str) -> None:
    op.create_table(
        "tokens_again",
        sa.Column("name", sa.String(128), nullable=False),
        sa.Column("digest", sa.String(64), nullable=False),
        sa.Column("scope", sa.String(16), nullable=False),
        sa.Column("project", sa.String(128), nullable=False),
        sa.Column("created_at", sa.String(40), nullable=False),
        sa.PrimaryKeyConstraint(*key, name="pk_tokens"),
    )
    op.execute(
        "INSERT OR IGNORE INTO tokens_again (name, digest, scope, project, created_at) "
        "SELECT name, digest, scope, project, created_at FROM tokens ORDER BY project"
    )
    op.drop_table("tokens")
    op.rename_table("tokens_again", "tokens")
