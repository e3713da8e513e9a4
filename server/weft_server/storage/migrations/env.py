"""Alembic runs this file to apply migrations on the connection that `weft_server.storage.database` gives it."""

from __future__ import annotations

from alembic import context

from weft_server.storage.database import Base

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=Base.metadata,
    render_as_batch=True,
    transactional_ddl=True,
)
with context.begin_transaction():
    context.run_migrations()
