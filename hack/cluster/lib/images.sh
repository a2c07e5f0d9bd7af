# Images in the nodes' containerd stores: there is no registry, so this is the only way in.
# shellcheck shell=bash

# The sandbox of every pod, and a shell for tests and trivial Jobs: static, 2 MB.
BUSYBOX_IMAGE=localhost/meta-infer/busybox:dev
# Which image of the local storage a node's copy was made from.
SOURCE_LABEL=metainfer.dev/source

# Prints a static busybox: the installed one, else that of Debian's package, unpacked into the cache (installing it
# would replace the dynamic one that other packages want).
busybox() {
  local dir=$CACHE_DIR/busybox installed
  if installed=$(type -P busybox) && ! ldd "$installed" >/dev/null 2>&1; then
    printf '%s' "$installed"
    return
  fi
  if ! [[ -x $dir/bin/busybox ]]; then
    say "fetching a static busybox"
    rm -rf "$dir.partial" && mkdir -p "$dir.partial"
    (cd "$dir.partial" && { apt-get download -qq busybox-static || { apt-get update -qq && apt-get download -qq busybox-static; }; } && dpkg-deb -x busybox-static_*.deb .) >&2 ||
      die "a static busybox is missing, and apt-get could not fetch it: install the package 'busybox-static'"
    rm -rf "$dir" && mv "$dir.partial" "$dir"
  fi
  printf '%s' "$dir/bin/busybox"
}

image_architecture() { case $(uname -m) in x86_64) echo amd64 ;; aarch64) echo arm64 ;; *) uname -m ;; esac; }

# The image as `docker save` writes it, made by hand so that a cluster starts without Docker or buildah. Times and
# owners are fixed: the same busybox gives the same image.
make_busybox_archive() {
  local archive=$CACHE_DIR/busybox-image.tar work applet layer
  if [[ ! -s $archive ]]; then
    work=$(mktemp -d)
    mkdir -p "$work/files/bin" "$work/files/tmp" "$work/image"
    chmod 1777 "$work/files/tmp"
    cp "$(busybox)" "$work/files/bin/busybox"
    for applet in $("$(busybox)" --list); do ln -s busybox "$work/files/bin/$applet" 2>/dev/null || true; done
    tar -C "$work/files" --sort=name --owner=0 --group=0 --numeric-owner --mtime=@0 -cf "$work/image/layer.tar" .
    layer=$(sha256sum "$work/image/layer.tar" | cut -d ' ' -f 1)
    cat >"$work/image/config.json" <<JSON
{"architecture": "$(image_architecture)", "os": "linux",
 "config": {"Cmd": ["/bin/busybox", "sleep", "2147483647"], "Env": ["PATH=/bin"]},
 "rootfs": {"type": "layers", "diff_ids": ["sha256:$layer"]}}
JSON
    echo "[{\"Config\": \"config.json\", \"RepoTags\": [\"$BUSYBOX_IMAGE\"], \"Layers\": [\"layer.tar\"]}]" >"$work/image/manifest.json"
    tar -C "$work/image" -cf "$archive.partial" manifest.json config.json layer.tar
    mv "$archive.partial" "$archive"
    rm -rf "$work"
  fi
  printf '%s' "$archive"
}

has_image() { [[ -n $(node_ctr "$1" images list --quiet "name==$2") ]]; }

ensure_busybox_image() {
  has_image "$1" "$BUSYBOX_IMAGE" && return
  node_ctr "$1" images import - <"$(make_busybox_archive)" >/dev/null || die "$1 could not take the image $BUSYBOX_IMAGE"
}
