"""The folders variants/ and recipes/ are installed under names that collide with nobody's."""

from setuptools import find_packages, setup

FOLDERS = {"attnres_variants": "variants", "attnres_recipes": "recipes"}

setup(
    packages=find_packages(include=["attnres_cli*"])
    + [
        package.replace(folder, name, 1)
        for name, folder in FOLDERS.items()
        for package in find_packages(include=[f"{folder}*"])
    ],
    package_dir=FOLDERS,
)
