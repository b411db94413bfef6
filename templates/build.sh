#!/usr/bin/env bash
# Builds a Flex Template: its image with Cloud Build, its file on Cloud Storage.
#
#   templates/build.sh [--dry-run] TEMPLATE
#
# TEMPLATE is a folder beside this script with a metadata.json, such as probe_rows. Environment
# variables:
#
#   PROJECT     the project's id
#   REGION      region of the repository and of Cloud Build, such as europe-west4
#   BUCKET      bucket of the template's file: gs://BUCKET/templates/TEMPLATE-TAG.json
#   REPOSITORY  repository of Artifact Registry (default: probeline)
#   TAG         tag of the image and the file (default: the version of the checkout)
#
# Needs roles/cloudbuild.builds.editor, roles/artifactregistry.writer and, on the bucket,
# roles/storage.objectUser; see docs/flex_templates.md. --dry-run prints the commands.

source -- "$(dirname -- "${BASH_SOURCE[0]}")/common.sh"

REPOSITORY=${REPOSITORY:-probeline}
[[ ${#ARGUMENTS[@]} -le 1 ]] || fail "${ARGUMENTS[1]} is an unexpected argument: see --help"
name=${ARGUMENTS[0]:-}
template "$name"
need_gcloud

image=$REGION-docker.pkg.dev/$PROJECT/$REPOSITORY/$name:$TAG
run gcloud builds submit "$ROOT" --project="$PROJECT" --region="$REGION" \
  --config="$HERE/cloudbuild.yaml" --substitutions="_TEMPLATE=$name,_IMAGE=$image"
run gcloud dataflow flex-template build "$TEMPLATE_FILE" --project="$PROJECT" --image="$image" \
  --sdk-language=PYTHON --metadata-file="$HERE/$name/metadata.json"
