#!/usr/bin/env bash
# Starts a job from a Flex Template built by build.sh.
#
#   templates/launch.sh [--dry-run] TEMPLATE PARAMETER=VALUE … [-- FLAG OF GCLOUD …]
#
# templates/TEMPLATE/metadata.json lists all parameters. Arguments after -- go to `gcloud dataflow
# flex-template run`, such as --max-workers=40 --worker-machine-type=n2-standard-4
# --disable-public-ips --subnetwork=…. Environment variables:
#
#   PROJECT          the project's id
#   REGION           region of the job; use that of the data, because traffic between regions costs
#   BUCKET           as for build.sh; temporary files go to gs://BUCKET/temp and …/staging
#   TAG              as for build.sh (default: the version of the checkout)
#   JOB_NAME         unique among active jobs (default: TEMPLATE and the time)
#   SERVICE_ACCOUNT  e-mail of the account of launcher and workers; empty: Compute Engine's default

source -- "$(dirname -- "${BASH_SOURCE[0]}")/common.sh"

readonly BETWEEN='||' # gcloud splits parameters at commas unless told otherwise
name=${ARGUMENTS[0]:-}
template "$name"
JOB_NAME=${JOB_NAME:-${name//_/-}-$(date -u +%Y%m%d-%H%M%S)}
[[ $JOB_NAME =~ ^[a-z]([-a-z0-9]{0,61}[a-z0-9])?$ ]] ||
  fail "JOB_NAME is $JOB_NAME: use a-z, 0-9 and -, a letter first, 63 at most"
parameters=
index=1
while ((index < ${#ARGUMENTS[@]})) && [[ ${ARGUMENTS[index]} != -- ]]; do
  parameter=${ARGUMENTS[index]}
  [[ $parameter =~ ^[a-z_]+= ]] || fail "$parameter is not PARAMETER=VALUE; flags of gcloud go after --"
  [[ $parameter != *"$BETWEEN"* ]] || fail "$parameter contains $BETWEEN, which separates parameters here"
  parameters+=${parameters:+$BETWEEN}$parameter
  index=$((index + 1))
done
[[ -n $parameters ]] || fail "no parameters: templates/$name/metadata.json lists them"
need_gcloud

flags=()
[[ -z ${SERVICE_ACCOUNT:-} ]] || flags+=(--service-account-email="$SERVICE_ACCOUNT")
run gcloud dataflow flex-template run "$JOB_NAME" --project="$PROJECT" --region="$REGION" \
  --template-file-gcs-location="$TEMPLATE_FILE" --temp-location="gs://$BUCKET/temp" \
  --staging-location="gs://$BUCKET/staging" "${flags[@]}" \
  --parameters="^$BETWEEN^$parameters" "${ARGUMENTS[@]:index + 1}"
