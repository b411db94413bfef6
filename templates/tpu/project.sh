#!/usr/bin/env bash
# Sets up a project once: the service account of the hosts, the bucket of the checkpoints, and the
# account's roles on that bucket and on the dataset's. Existing resources are kept.
#
#   templates/tpu/project.sh [--dry-run]
#
# settings.sh has the settings. Requires roles/serviceusage.serviceUsageAdmin,
# roles/iam.serviceAccountAdmin, roles/storage.admin and roles/resourcemanager.projectIamAdmin.

source -- "$(dirname -- "${BASH_SOURCE[0]}")/common.sh"

[[ ${#ARGUMENTS[@]} -eq 0 ]] || fail "${ARGUMENTS[0]} is not an argument of $0: see --help"
need PROJECT ZONE SERVICE_ACCOUNT
need_gs DATASET OUTPUT
[[ $SERVICE_ACCOUNT == ?*@"$PROJECT".iam.gserviceaccount.com ]] ||
  fail "SERVICE_ACCOUNT is $SERVICE_ACCOUNT: it must be NAME@$PROJECT.iam.gserviceaccount.com, set it in $SETTINGS"
need_program "${GCLOUD[0]}" "see https://docs.cloud.google.com/sdk/docs/install"

is_there() { [[ -z $DRY_RUN ]] && "${GCLOUD[@]}" "$@" --project="$PROJECT" >/dev/null 2>&1; }
may() { # ROLE WHERE…: grants the account a role
  run "${GCLOUD[@]}" "${@:2}" --member="serviceAccount:$SERVICE_ACCOUNT" --role="$1" --project="$PROJECT" --quiet
}

output_bucket=gs://$(bucket_of "$OUTPUT")
dataset_bucket=gs://$(bucket_of "$DATASET")

services=(tpu.googleapis.com storage.googleapis.com)
[[ -z $CLUSTER ]] || services+=(container.googleapis.com artifactregistry.googleapis.com)
run "${GCLOUD[@]}" services enable "${services[@]}" --project="$PROJECT"

is_there iam service-accounts describe "$SERVICE_ACCOUNT" ||
  run "${GCLOUD[@]}" iam service-accounts create "${SERVICE_ACCOUNT%%@*}" --display-name="Probeline training" --project="$PROJECT"

# In the slice's region: traffic between regions costs money and time. Folders (a hierarchical
# namespace) are permanent and for new buckets only: more requests per second from the start, and
# Orbax lists checkpoints by them. Soft delete would bill every replaced checkpoint for seven more days. https://docs.cloud.google.com/storage/docs/hns-overview and …/soft-delete
is_there storage buckets describe "$output_bucket" ||
  run "${GCLOUD[@]}" storage buckets create "$output_bucket" --location="${ZONE%-*}" --project="$PROJECT" \
    --uniform-bucket-level-access --enable-hierarchical-namespace --soft-delete-duration=0

may roles/storage.objectViewer storage buckets add-iam-policy-binding "$dataset_bucket"
may roles/storage.objectUser storage buckets add-iam-policy-binding "$output_bucket"
# Orbax requests the bucket itself (storage.buckets.get), which the role above does not allow.
may roles/storage.legacyBucketReader storage buckets add-iam-policy-binding "$output_bucket"
may roles/logging.logWriter projects add-iam-policy-binding "$PROJECT" --condition=None
may roles/monitoring.metricWriter projects add-iam-policy-binding "$PROJECT" --condition=None
