//! The pages: read once, never changed.
use anyhow::{Context, Result, bail};
use std::collections::HashMap;
use std::fs;
use std::path::Path;

/// A page.
#[derive(Debug)]
pub struct Page {
    /// Its media type.
    pub media_type: &'static str,
    /// Its bytes.
    pub body: Vec<u8>,
}

/// All pages by their decoded paths.
#[derive(Debug, Default)]
pub struct Site {
    paths: HashMap<Vec<u8>, u32>,
    pages: Vec<Page>,
    limit_bytes: u64,
    bytes: u64,
}

impl Site {
    /// A site without pages, with room for this many bytes.
    pub fn new(limit_bytes: u64) -> Site {
        Site { limit_bytes, ..Site::default() }
    }

    /// Adds a page of `size` bytes of text at `/size`; the first one also at `/`.
    pub fn add_synthetic(&mut self, size: u64) -> Result<()> {
        self.charge(size).with_context(|| format!("cannot make a page of {size} bytes"))?;
        let line = b"All work and no waiting makes a dataplane a quick one.\n";
        let body = line.iter().copied().cycle().take(size as usize).collect();
        let first = !self.paths.contains_key(&b"/"[..]);
        let page = self.push(Page { media_type: "text/plain; charset=utf-8", body });
        self.paths.insert(format!("/{size}").into_bytes(), page);
        if first {
            self.paths.insert(b"/".to_vec(), page);
        }
        Ok(())
    }

    /// Adds the files of a folder and its subfolders; `index.html` is also the page of its folder.
    /// Hidden files, and what is neither file nor folder, are skipped.
    pub fn add_folder(&mut self, folder: &Path) -> Result<()> {
        self.add_under(folder, b"/")
    }

    fn add_under(&mut self, folder: &Path, prefix: &[u8]) -> Result<()> {
        let cannot = || format!("cannot read {}", folder.display());
        for entry in fs::read_dir(folder).with_context(cannot)? {
            let entry = entry.with_context(cannot)?;
            let name = entry.file_name();
            let (name, file) = (name.as_encoded_bytes(), entry.path());
            // Links are not followed: their targets may be outside the folder.
            let kind = entry.file_type().with_context(cannot)?;
            if name.starts_with(b".") {
                continue;
            }
            let path = [prefix, name].concat();
            if kind.is_dir() {
                self.add_under(&file, &[&path[..], b"/"].concat())?;
            } else if kind.is_file() {
                self.add_file(&file, path)?;
            }
        }
        Ok(())
    }

    fn add_file(&mut self, file: &Path, path: Vec<u8>) -> Result<()> {
        let cannot = || format!("cannot read {}", file.display());
        self.charge(fs::metadata(file).with_context(cannot)?.len()).with_context(cannot)?;
        let body = fs::read(file).with_context(cannot)?;
        let page = self.push(Page { media_type: media_type(file), body });
        if let Some(folder) = path.strip_suffix(b"index.html").filter(|f| f.ends_with(b"/")) {
            self.paths.insert(folder.to_vec(), page);
        }
        self.paths.insert(path, page);
        Ok(())
    }

    fn charge(&mut self, bytes: u64) -> Result<()> {
        self.bytes += bytes;
        if self.bytes > self.limit_bytes {
            let mib = self.limit_bytes >> 20;
            bail!("all pages together are larger than {mib} MiB; raise --memory");
        }
        Ok(())
    }

    fn push(&mut self, page: Page) -> u32 {
        self.pages.push(page);
        (self.pages.len() - 1) as u32
    }

    /// The page at a path.
    #[inline]
    pub fn find(&self, path: &[u8]) -> Option<u32> {
        self.paths.get(path).copied()
    }

    /// All pages; the index identifies a page.
    pub fn pages(&self) -> &[Page] {
        &self.pages
    }
}

fn media_type(file: &Path) -> &'static str {
    match file.extension().and_then(|extension| extension.to_str()) {
        Some("html" | "htm") => "text/html; charset=utf-8",
        Some("css") => "text/css; charset=utf-8",
        Some("js" | "mjs") => "text/javascript; charset=utf-8",
        Some("txt" | "md") => "text/plain; charset=utf-8",
        Some("json") => "application/json",
        Some("svg") => "image/svg+xml",
        Some("png") => "image/png",
        Some("jpg" | "jpeg") => "image/jpeg",
        Some("gif") => "image/gif",
        Some("webp") => "image/webp",
        Some("ico") => "image/x-icon",
        Some("woff2") => "font/woff2",
        Some("wasm") => "application/wasm",
        Some("pdf") => "application/pdf",
        _ => "application/octet-stream",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_become_paths() {
        let root = std::env::temp_dir().join(format!("ix-site-{}", std::process::id()));
        fs::create_dir_all(root.join("a b")).unwrap();
        fs::write(root.join("index.html"), "<p>home").unwrap();
        fs::write(root.join("a b/index.html"), "<p>inner").unwrap();
        fs::write(root.join("a b/x.css"), "").unwrap();
        fs::write(root.join(".secret"), "no").unwrap();
        std::os::unix::fs::symlink("/etc/passwd", root.join("link")).unwrap();
        let mut site = Site::new(1 << 20);
        site.add_folder(&root).unwrap();
        let body = |path: &str| {
            site.find(path.as_bytes()).map(|page| site.pages()[page as usize].body.as_slice())
        };
        assert_eq!(body("/"), Some(&b"<p>home"[..]));
        assert_eq!(body("/index.html"), body("/"));
        assert_eq!(body("/a b/"), Some(&b"<p>inner"[..]));
        assert_eq!(body("/a b/x.css"), Some(&b""[..]));
        for missing in ["/.secret", "/link", "/a b", "", "/..", "/a b/.."] {
            assert_eq!(body(missing), None, "{missing}");
        }
        let error = Site::new(4).add_folder(&root).unwrap_err();
        assert!(format!("{error:#}").contains("--memory"), "{error:#}");
        fs::remove_dir_all(&root).unwrap();
        assert!(Site::new(4).add_folder(&root).is_err());
    }

    #[test]
    fn synthetic_pages_have_their_size() {
        let mut site = Site::new(1 << 20);
        site.add_synthetic(0).unwrap();
        site.add_synthetic(1000).unwrap();
        assert_eq!(site.find(b"/"), site.find(b"/0"));
        assert_eq!(site.pages()[site.find(b"/1000").unwrap() as usize].body.len(), 1000);
        assert!(site.add_synthetic(2 << 20).is_err());
    }
}
