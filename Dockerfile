# One image for the server, the shards and the workers: docker build -t weft:0.1.0 .
# With a GPU: --build-arg EXTRAS=cluster,cuda; with snapshots in a bucket: cluster,s3 or cluster,gs
ARG PYTHON=3.13

FROM python:${PYTHON}-slim AS build
ARG EXTRAS=cluster
WORKDIR /source
COPY . .
RUN python -m venv /opt/weft && /opt/weft/bin/pip install --no-cache-dir ".[${EXTRAS}]"

FROM python:${PYTHON}-slim
RUN groupadd --gid 10001 weft && useradd --uid 10001 --gid 10001 --no-create-home --shell /usr/sbin/nologin weft
COPY --from=build /opt/weft /opt/weft
ENV PATH=/opt/weft/bin:$PATH PYTHONUNBUFFERED=1
USER 10001:10001
EXPOSE 8470 8471-8570
# docker run weft:0.1.0 weft_server --host 0.0.0.0 ... | weft_kvstore ... | weft_worker ...
ENTRYPOINT ["python", "-m"]
CMD ["weft_server", "--help"]
